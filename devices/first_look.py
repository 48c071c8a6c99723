"""What set-up does last: install the kernels that came along, and print which GPU was found and what it uses."""

import sys

from devices.detect import inventory
from devices.gpu_advice import gpu_lines
from devices.host_real import RealHost
from devices.kernel_packs import bundled
from devices.report import live_report


def main() -> int:
    """Print a line for each GPU."""
    host = RealHost()
    bundled.provide(inventory(host))
    for line in gpu_lines(live_report(host, None)):
        sys.stdout.write(f"{line}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
