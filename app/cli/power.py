"""`tessera power`."""

import click

from app.cli.echo import echo
from app.cli.settings_defaults import Number


@click.command(help="Show or set power limits: a mode, a limit in watts, a share of the battery.")
@click.option(
    "--mode",
    type=click.Choice(["quiet", "balanced", "fast"], case_sensitive=False),
    help="Quiet leaves half the cores free.",
)
@click.option("--cap", "cap_w", type=Number(1, 10_000), help="Maximum power of the computer in watts.")
@click.option(
    "--battery",
    "battery_percent",
    type=Number(0, 100, min_open=True),
    help="Maximum share of the battery, in percent.",
)
@click.option("--free", is_flag=True, help="Remove all limits.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    mode: str | None, cap_w: float | None, battery_percent: float | None, free: bool, as_json: bool
) -> None:
    """Options that are not given stay unchanged."""
    import msgspec

    from app.cli.connection import connected
    from engine.api.machine import PowerLimits
    from engine.api.sentences import encoded

    values = {"mode": mode, "cap_w": cap_w, "battery_percent": battery_percent}
    chosen = {name: value for name, value in values.items() if value is not None}
    with connected() as client:
        now = client.power()
        if free or chosen:
            before = PowerLimits() if free else now.limits
            now = client.set_power(msgspec.convert({**msgspec.to_builtins(before), **chosen}, PowerLimits))
    if as_json:
        json_text = encoded(now).decode()
        click.echo(json_text)
        return
    drawn = f"{now.power_w:.1f} W now" if now.power_w is not None else "not measured: no meter here"
    saver = ", the system saves power" if now.saver else ""
    saver = ", the system's performance profile is on" if now.performance else saver
    echo(f"mode {now.mode}{saver}; power {drawn}")
    if now.limits.cap_w is not None:
        limits = f"{now.threads or 'all'} threads, steps run {now.duty_frac:.0%} of the time"
        echo(f"cap {now.limits.cap_w:g} W: {limits if now.measured else 'not held'}")
    if now.limits.battery_percent is not None:
        spent = f"{now.spent_percent:.1f} % spent" if now.spent_percent is not None else "not counted"
        echo(f"at most {now.limits.battery_percent:g} % of the battery: {spent}")
    for note in now.notes:
        echo(str(note))
