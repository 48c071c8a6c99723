#!/bin/sh
# An AppImage of the program. Untested: appimagetool was not at hand.
#
#   python3 installers/build.py folder
#   sh installers/linux/appimage.sh build/installers/bundle/tessera dist
set -eu
program=$1 out=$2
here=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/usr/lib"
cp -r "$program" "$work/usr/lib/tessera"
cp "$here/installers/linux/io.github.tessera.Tessera.desktop" "$work/"
cp "$here/assets/icons/tessera.svg" "$work/io.github.tessera.Tessera.svg"
cat > "$work/AppRun" <<'RUN'
#!/bin/sh
exec "$(dirname "$(readlink -f "$0")")/usr/lib/tessera/tessera" "$@"
RUN
chmod 755 "$work/AppRun"
mkdir -p "$out"
ARCH=$(uname -m) appimagetool --no-appstream "$work" "$out/Tessera-$(uname -m).AppImage"
