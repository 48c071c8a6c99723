"""Limits of a container or the shell: cgroup memory and CPU limits, address space."""

import msgspec

from devices.host import Host, fields, number, read_number, text

# cgroup v1 represents "no limit" as LONG_MAX rounded down to a page.
V1_UNLIMITED = 1 << 62
CGROUP = "/sys/fs/cgroup"


class MemoryLimit(msgspec.Struct, frozen=True):
    """The tightest limit above this process: bytes allowed, and the part of it that is not reclaimable now."""

    limit_bytes: int
    used_bytes: int
    source: str

    @property
    def free_bytes(self) -> int:
        """Bytes that may still be allocated."""
        return max(0, self.limit_bytes - self.used_bytes)


def cgroup_paths(host: Host) -> dict[str, str]:
    """Controller → path of this process's cgroup; the unified hierarchy (v2) has the empty name."""
    paths: dict[str, str] = {}
    for line in text(host, "/proc/self/cgroup").splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            for controller in parts[1].split(","):
                paths[controller] = parts[2]
    return paths


def _ancestors(path: str) -> list[str]:
    """The folder and all its parents, deepest first; inside a container only the root may exist."""
    parts = [p for p in path.split("/") if p not in {"", ".", ".."}][:32]
    return ["/".join(["", *parts[:depth]]) for depth in range(len(parts), -1, -1)]


def memory_limit(host: Host) -> MemoryLimit | None:
    """The tightest cgroup memory limit on this process or its parents; None without a limit."""
    paths = cgroup_paths(host)
    limits = []
    for folder in _ancestors(paths.get("", "")):
        base = CGROUP + folder
        limit = read_number(host, f"{base}/memory.max")
        if limit is not None:
            used = read_number(host, f"{base}/memory.current") or 0
            cache = number(fields(text(host, f"{base}/memory.stat"), " ").get("inactive_file")) or 0
            limits.append(MemoryLimit(limit, max(0, used - cache), f"{base}/memory.max"))
    for folder in _ancestors(paths.get("memory", "")):
        base = f"{CGROUP}/memory{folder}"
        limit = read_number(host, f"{base}/memory.limit_in_bytes")
        if limit is not None and limit < V1_UNLIMITED:
            used = read_number(host, f"{base}/memory.usage_in_bytes") or 0
            stat = fields(text(host, f"{base}/memory.stat"), " ")
            cache = number(stat.get("total_inactive_file")) or 0
            limits.append(MemoryLimit(limit, max(0, used - cache), f"{base}/memory.limit_in_bytes"))
    return min(limits, key=lambda each: each.free_bytes, default=None)


def cpu_quota(host: Host) -> float | None:
    """Cores the cgroup allows on average; None without a quota."""
    paths = cgroup_paths(host)
    quotas = []
    for folder in _ancestors(paths.get("", "")):
        words = text(host, f"{CGROUP}{folder}/cpu.max").split()
        if len(words) == 2:
            quotas.append((number(words[0]), number(words[1])))
    for controller in ("cpu", "cpu,cpuacct"):
        for folder in _ancestors(paths.get("cpu", "")):
            base = f"{CGROUP}/{controller}{folder}"
            quotas.append(
                (
                    read_number(host, f"{base}/cpu.cfs_quota_us"),
                    read_number(host, f"{base}/cpu.cfs_period_us"),
                )
            )
    return min((quota / period for quota, period in quotas if quota and period), default=None)
