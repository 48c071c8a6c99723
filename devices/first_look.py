"""Last step of the setup: install the bundled kernels, and print each GPU and the kernels it uses."""

import sys

from devices.gpu_advice import gpu_lines
from devices.host_real import RealHost
from devices.report import live_report


def main() -> int:
    """Print a line for each GPU."""
    for line in gpu_lines(live_report(RealHost(), None)):
        sys.stdout.write(f"{line}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
