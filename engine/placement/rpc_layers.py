"""Splits the layers of one model over this machine and workers: how many where, memory needs, expected speed."""

from collections.abc import Sequence
from typing import Final

import msgspec

from devices.types import Machine
from engine.message_catalog.reasons import Reason, because
from engine.placement.estimate import compute_prior, estimate, kv_layer_bytes, overdraft, work_bytes
from engine.placement.resources import Resources
from engine.placement.shape import ModelShape, block_of
from engine.placement.speed import USUAL_DEPTH, effective_gbs, weights_read
from engine.placement.types import Alternative, DryRun, DryRunner, MemoryEstimate, MemoryPart, Placement
from engine.remotes.registry import BACKEND, RemoteRegistry, device_id, remote_of
from engine.remotes.types import PREFIX, Link, RemoteDevice
from engine.runner.load_limits import rollback, sequences
from engine.runner.protocol import LoadSettings, RemoteLayers

_FAR: Final = "far"


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """One device of a worker. `buffer` is llama.cpp's name for it; the output counts as a layer.

    `process_bytes` are in use there before any tensor is loaded; a CPU also has scratch memory of its kernels.
    """

    device: str
    buffer: str
    layers: int
    process_bytes: int = 0
    computes_on_cpu: bool = False


def unit_bytes(shape: ModelShape, settings: LoadSettings) -> list[int]:
    """Weights and cache of each layer, and last of the output, on a device that does not repack weights."""
    weights = weight_units(shape)
    kv = kv_layer_bytes(shape, settings)
    count = sequences(settings, keeps_state=shape.recurrent) * (1 + rollback(settings))
    caches = [cache + layer.state_bytes * count for cache, layer in zip(kv, shape.layers, strict=True)]
    return [size + cache for size, cache in zip(weights, [*caches, 0], strict=True)]


def weight_units(shape: ModelShape) -> list[int]:
    """Weights of each layer, followed by those of the output."""
    trunk = len(shape.layers)
    units = [0] * (trunk + 1)
    for tensor in shape.tensors:
        block = block_of(tensor.name)
        if block is not None:
            if block < trunk:
                units[block] += tensor.nbytes
        elif tensor.name.startswith("output") or (shape.tied and tensor.name == "token_embd.weight"):
            units[trunk] += tensor.nbytes
    return units


def spread_need(
    shape: ModelShape,
    settings: LoadSettings,
    isa: frozenset[str],
    holders: tuple[Holder, ...],
    dry_run: DryRun | None = None,
) -> MemoryEstimate:
    """The need by device: layers in the order of `holders`, the last of which has the output."""
    count = sum(h.layers for h in holders)
    at = msgspec.structs.replace(settings, n_gpu_layers=count)
    whole = estimate(shape, at, isa, gpu=_FAR, dry_run=dry_run)
    parts = [part for part in whole.parts if part.device != _FAR]
    if dry_run is None:
        parts.append(MemoryPart(name="compute", device="cpu", num_bytes=compute_prior(shape, at), basis="prior"))
    weights = weight_units(shape)
    caches = [all_of - size for all_of, size in zip(unit_bytes(shape, at), weights, strict=True)]
    end = len(weights)
    for holder in reversed(holders):
        begin = end - holder.layers
        compute = dry_run.compute_bytes.get(holder.buffer, 0) if dry_run else compute_prior(shape, at)
        work = work_bytes(shape, at) if holder.computes_on_cpu else 0
        parts += [
            MemoryPart(name="weights", device=holder.device, num_bytes=sum(weights[begin:end])),
            MemoryPart(name="kv", device=holder.device, num_bytes=sum(caches[begin:end])),
            MemoryPart(
                name="compute", device=holder.device, num_bytes=compute, basis="probe" if dry_run else "prior"
            ),
            MemoryPart(name="overhead", device=holder.device, num_bytes=holder.process_bytes + work, basis="prior"),
        ]
        end = begin
    nonempty = tuple(part for part in parts if part.num_bytes)
    return msgspec.structs.replace(whole, parts=nonempty, n_gpu_layers=count)


# Minimum speed-up for using a worker because it is faster: every token crosses the link.
FASTER: Final = 1.3
# Assumed until a link is measured: a home network.
UNMEASURED: Final = Link(rtt_s=0.005, up_bytes_s=10e6, down_bytes_s=10e6)
# A response that is faster by more than this factor means that the recorded speed of this computer is outdated.
MOST_OFF: Final = 4.0
# Replies of workers that a token waits for, and the bytes that a step sends in addition to hidden rows and the
# attention mask: positions, and the calls themselves. Measured: log-archive.md, layers on other machines.
ROUNDS: Final = 1
STEP_BYTES: Final = 4096


class Far(msgspec.Struct, frozen=True):
    """One device of a worker, with the connection to it."""

    remote: str
    device: RemoteDevice
    index: int
    of: int
    session_bytes: int
    link: Link

    @property
    def id(self) -> str:
        """Its id in the machine's list."""
        return device_id(self.remote, self.device)


def pinned_to(registry: RemoteRegistry, pin: str | None) -> str:
    """The worker that a pin names, by its own or a device's name; empty if it names none."""
    if pin is None:
        return ""
    name = remote_of(pin) or pin.removeprefix(PREFIX)
    return name if any(r.name == name for r in registry.remotes) else ""


def devices_of(settings: LoadSettings, machine: Machine) -> tuple[str | None, ...]:
    """Ids of the devices that `settings.remotes` name, as far as they are known."""
    return tuple(_id(layers, machine) for layers in settings.remotes)


def _remote_layers(settings: LoadSettings) -> list[tuple[RemoteLayers, str]]:
    return list(zip(settings.remotes, settings.devices, strict=True))


def _id(layers: RemoteLayers, machine: Machine) -> str | None:
    theirs = [d for d in machine.devices if remote_of(d.id) == layers.remote]
    return theirs[layers.index].id if layers.index < len(theirs) else None


def need(
    shape: ModelShape, settings: LoadSettings, machine: Machine, registry: RemoteRegistry, run: DryRun | None = None
) -> MemoryEstimate:
    """Memory need of a load here and on each worker."""
    by_id = {far.id: far for far in _remote_devices(registry)}
    holders = []
    for (layers, name), device in zip(_remote_layers(settings), devices_of(settings, machine), strict=True):
        far = by_id.get(device or "")
        holders.append(
            Holder(
                device=device or f"{PREFIX}{layers.remote}",
                buffer=name,
                layers=layers.layers,
                process_bytes=far.session_bytes if far is not None and far.device.kind == "cpu" else 0,
                computes_on_cpu=far is None or far.device.kind == "cpu",
            )
        )
    return spread_need(shape, settings, machine.isa, tuple(holders), run)


def _remote_devices(registry: RemoteRegistry) -> list[Far]:
    devices = []
    for remote in registry.remotes:
        seen = registry.seen(remote.name)
        if seen.facts is None:
            continue
        offered = seen.facts.devices
        link = seen.link or UNMEASURED
        devices += [
            Far(remote.name, d, i, len(offered), seen.facts.session_bytes, link) for i, d in enumerate(offered)
        ]
    return devices


class Spreading:
    """Plans how to divide one model between this computer and its workers, in their current state."""

    def __init__(self, resources: Resources, machine: Machine, owner: str, dry_run: DryRunner) -> None:
        self._registry, self._machine, self._owner = resources.remotes, machine, owner
        self._ledger, self._history = resources.ledger, resources.history
        self._dry_run = dry_run

    def instead_of(self, here: Placement, shape: ModelShape, pinned: str) -> Placement:
        """`here`, or layers on workers if the user's settings or the free memory require that."""
        usable = [far for far in _remote_devices(self._registry) if self._usable(far)]
        if pinned:
            usable = [far for far in usable if far.remote == pinned]
        else:
            use = {r.name: r.use for r in self._registry.remotes}
            allowed = {"faster"} if here.fits else {"faster", "unfit"}
            usable = [far for far in usable if use[far.remote] in allowed]
        if here.settings.engine_args.rpc or here.settings.embeddings:
            return here
        plan = self._best(here.settings, shape, usable, most=bool(pinned)) if usable else None
        if plan is None:
            why = self._rejection_reason(pinned, here)
            return msgspec.structs.replace(here, reasons=(*here.reasons, why)) if why is not None else here
        if here.fits and not pinned and (plan.decode_tok_s or 0) < FASTER * (here.decode_tok_s or 0):
            return here
        first = because("pinned_there" if pinned else "faster_there" if here.fits else "not_here_alone")
        local = Alternative(
            device=here.device,
            backend=here.backend,
            n_gpu_layers=here.settings.n_gpu_layers,
            decode_tok_s=here.decode_tok_s,
            reason=because("here_alone" if here.fits else "here_alone_too_small"),
        )
        return msgspec.structs.replace(
            plan, reasons=(first, *plan.reasons), alternatives=(local, *here.alternatives)
        )

    def _usable(self, far: Far) -> bool:
        device = self._machine.device(far.id)
        return device is not None and device.state == "usable"

    def _rejection_reason(self, pinned: str, here: Placement) -> Reason | None:
        bad = [d for d in self._machine.devices if d.kind == "remote" and d.state != "usable"]
        pinned_device = next((d for d in bad if remote_of(d.id) == pinned), None)
        if pinned_device is not None:
            return because("remote_unusable", remote=pinned, why=pinned_device.reason)
        if pinned:
            return because("remote_too_small", remote=pinned)
        if not here.fits and bad:
            return because("remote_unusable", remote=remote_of(bad[0].id), why=bad[0].reason)
        return None

    def _best(
        self, base: LoadSettings, shape: ModelShape, usable: Sequence[Far], *, most: bool
    ) -> Placement | None:
        """The fastest split that fits; of equal ones the one with fewest remote layers (`most`: with most)."""
        order = sorted(usable, key=lambda far: -self._gbs(far))
        plans = []
        for count in range(1, len(shape.layers) + 2):
            settings = self._divided(base, shape, order, count)
            if settings is None:
                break
            memory = need(shape, settings, self._machine, self._registry)
            if overdraft(self._ledger, memory, self._owner) is None:
                plans.append((self._tok_s(shape, settings), -count, settings))
        best = sorted(plans, key=lambda plan: -plan[1] if most else plan[:2], reverse=True)
        for tok_s, _, settings in best:
            memory = need(shape, settings, self._machine, self._registry, self._dry_run(settings))
            if overdraft(self._ledger, memory, self._owner) is None:
                return self._placement(shape, settings, memory, tok_s)
        return None

    def _divided(
        self, base: LoadSettings, shape: ModelShape, order: Sequence[Far], count: int
    ) -> LoadSettings | None:
        """The last `count` layers on the workers, as many as fit on the first of them; None if they do not fit."""
        units = unit_bytes(shape, base)[-count:]
        shares: list[tuple[Far, int]] = []
        at = 0
        for far in order:
            free = self._ledger.available(far.id, self._machine, exclude=self._owner)
            free -= spread_need(shape, base, self._machine.isa, (self._holder(far, 0),)).device_bytes(far.id)
            num_layers = 0
            while at < count and free >= units[at]:
                free -= units[at]
                at, num_layers = at + 1, num_layers + 1
            if num_layers:
                shares.append((far, num_layers))
        if at < count:
            return None
        return _settings(base, shares, count)

    def _holder(self, far: Far, layers: int) -> Holder:
        computes_on_cpu = far.device.kind == "cpu"
        size = far.session_bytes if computes_on_cpu else 0
        return Holder(
            device=far.id, buffer="RPC0", layers=layers, process_bytes=size, computes_on_cpu=computes_on_cpu
        )

    def _gbs(self, far: Far) -> float:
        return self._history.speed_gbs(far.id, BACKEND) or far.device.gbs

    def _tok_s(self, shape: ModelShape, settings: LoadSettings) -> float:
        """Tokens/s, from weights read here, weights read on workers, and the link."""
        times = self.times(shape, settings)
        return 1 / sum(times) if sum(times) else 0.0

    def times(self, shape: ModelShape, settings: LoadSettings) -> tuple[float, float, float]:
        """Seconds per token: here, on the workers, on the links."""
        share = _shares(shape, settings)
        total = weights_read(shape) / 1e9
        by_id = {far.id: far for far in _remote_devices(self._registry)}
        far_s = link_s = 0.0
        for device, part, (up, down) in zip(
            devices_of(settings, self._machine), share[1:], crossing_bytes(shape, settings), strict=True
        ):
            far = by_id.get(device or "")
            if far is None:
                continue
            far_s += part * total / max(0.01, self._gbs(far))
            link = far.link
            link_s += ROUNDS * link.rtt_s + up / link.up_bytes_s + down / link.down_bytes_s
        return share[0] * total / max(0.01, self._here_gbs()), far_s, link_s

    def _here_gbs(self) -> float:
        """GB/s that this CPU reads when workers take part: measured that way, measured alone, or expected."""
        cpu = self._machine.device("cpu")
        expected = effective_gbs(cpu, "cpu") if cpu is not None else 1.0
        return self._history.speed_gbs("cpu", BACKEND) or self._history.speed_gbs("cpu", "cpu") or expected

    def learn(self, shape: ModelShape, settings: LoadSettings, tok_s: float) -> None:
        """Learn the speed of the one worker device that took part, and of this CPU, from a response's speed.

        One time cannot determine two speeds. If this CPU was measured alone, the rest of the time is the worker's.
        Without that, or if almost no time would remain for the worker, both speeds are corrected by the same
        factor.
        """
        devices = [d for d in devices_of(settings, self._machine) if d is not None]
        here, far, link = self.times(shape, settings)
        both = 1 / tok_s - link
        if len(devices) != 1 or far <= 0 or both <= 0:
            return
        share = _shares(shape, settings)
        read = weights_read(shape)
        remote_s = both - here
        if self._history.speed_gbs("cpu", "cpu") is None or remote_s < far / MOST_OFF:
            scale = both / (here + far)
            remote_s = far * scale
            if here > 0:
                self._history.record_speed("cpu", BACKEND, int(share[0] * read), 1 / (here * scale))
        self._history.record_speed(devices[0], BACKEND, int(share[1] * read), 1 / remote_s)

    def _placement(
        self, shape: ModelShape, settings: LoadSettings, memory: MemoryEstimate, tok_s: float
    ) -> Placement:
        n_layers = len(shape.layers)
        names = list(dict.fromkeys(layers.remote for layers in settings.remotes))
        crossing = crossing_bytes(shape, settings)
        shares = []
        for (layers, _), (up, down) in zip(_remote_layers(settings), crossing, strict=True):
            last = layers is settings.remotes[-1]
            share = because("output_on_remote", remote=layers.remote, up_kb=up / 1e3, down_kb=down / 1e3)
            if layers.layers > last:
                there = layers.layers - last
                share = because("layers_on_remote", layers=there, all_layers=n_layers, **share.values)
            shares.append(share)
        by_id = {far.id: far for far in _remote_devices(self._registry)}
        devices = [d for d in devices_of(settings, self._machine) if d is not None]
        measured = all(self._history.speed_gbs(d, BACKEND) for d in devices)
        links = {by_id[d].remote: by_id[d].link for d in devices if d in by_id}
        ways = [
            because("remote_link", remote=name, rtt_ms=link.rtt_s * 1000, down_mb_s=link.down_bytes_s / 1e6)
            for name, link in links.items()
        ]
        return Placement(
            device=devices[0] if devices else f"{PREFIX}{names[0]}",
            device_name=" and ".join(names if settings.n_gpu_layers > n_layers else ("this computer", *names)),
            backend=BACKEND,
            n_layers=n_layers,
            settings=settings,
            need=memory,
            fits=True,
            decode_tok_s=round(tok_s, 1) or None,
            basis="measured" if measured else "prior",
            reasons=(because("spread", shares=tuple(shares), tok_s=tok_s), *ways),
        )  # fmt: skip


def _settings(base: LoadSettings, shares: Sequence[tuple[Far, int]], count: int) -> LoadSettings:
    """The load with these shares; the devices of every worker are numbered in the order they are registered."""
    remotes = list(dict.fromkeys(far.remote for far, _ in shares))
    first, sizes = {}, {far.remote: far.of for far, _ in shares}
    total = 0
    for name in remotes:
        first[name] = total
        total += sizes[name]
    ordered = sorted(shares, key=lambda share: (remotes.index(share[0].remote), share[0].index))
    return msgspec.structs.replace(
        base,
        n_gpu_layers=count,
        devices=tuple(f"RPC{first[far.remote] + far.index}" for far, _ in ordered),
        remotes=tuple(RemoteLayers(remote=far.remote, layers=n, index=far.index) for far, n in ordered),
        cache_ram_bytes=0,
        cache_disk_bytes=0,
        mtp=False,
        max_rollback=0,
        draft_path=None,
        tensor_split=(),
        cpu_expert_layers=0,
    )


def _shares(shape: ModelShape, settings: LoadSettings) -> list[float]:
    """Shares of the bytes read per token: here, and on each of the workers' devices."""
    units = unit_bytes(shape, msgspec.structs.replace(settings, kv_cells=1, n_ctx=1))
    total = max(1, sum(units))
    shares, end = [], len(units)
    for layers in reversed(settings.remotes):
        shares.append(sum(units[end - layers.layers : end]) / total)
        end -= layers.layers
    return [sum(units[:end]) / total, *reversed(shares)]


def crossing_bytes(shape: ModelShape, settings: LoadSettings) -> list[tuple[float, float]]:
    """Bytes that one token sends to and receives from each of the workers' devices."""
    row = 4 * shape.embedding
    mask = 2 * min(USUAL_DEPTH, max(settings.kv_cells, settings.n_ctx))
    last = len(settings.remotes) - 1
    return [
        (row + mask + STEP_BYTES, 4 * shape.vocabulary if i == last else row) for i in range(len(settings.remotes))
    ]
