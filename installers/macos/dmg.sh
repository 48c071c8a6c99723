#!/bin/sh
# A signed and notarized disk image of the program. Untested: no Mac was at hand.
#
#   python3 installers/build.py folder
#   IDENTITY="Developer ID Application: ..." PROFILE=notary sh installers/macos/dmg.sh build/installers/bundle/tessera dist
#
# PROFILE was stored once by: xcrun notarytool store-credentials
set -eu
program=$1 out=$2
here=$(cd "$(dirname "$0")/../.." && pwd)
version=$(python3 -c "import runpy; print(runpy.run_path('$here/engine/core/version.py')['__version__'])")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
app="$work/Tessera.app/Contents"
mkdir -p "$app/MacOS" "$app/Resources"
cp -R "$program/" "$app/MacOS/"
sed "s/@VERSION@/$version/g" "$here/installers/macos/Info.plist.in" > "$app/Info.plist"
cp "$program/../../icons/tessera.icns" "$app/Resources/"
if [ -n "${IDENTITY:-}" ]; then
  find "$app/MacOS" \( -name '*.dylib' -o -name '*.so' \) -exec \
    codesign --force --timestamp --options runtime --sign "$IDENTITY" {} +
  codesign --force --timestamp --options runtime --entitlements "$here/installers/macos/entitlements.plist" \
    --sign "$IDENTITY" "$work/Tessera.app"
fi
mkdir -p "$out"
image="$out/Tessera-$version.dmg"
ln -s /Applications "$work/Applications"
hdiutil create -volname Tessera -srcfolder "$work" -ov -format UDZO "$image"
if [ -n "${PROFILE:-}" ]; then
  xcrun notarytool submit "$image" --keychain-profile "$PROFILE" --wait
  xcrun stapler staple "$image"
fi
echo "$image"
