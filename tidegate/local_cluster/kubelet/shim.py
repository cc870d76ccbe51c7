"""The process above each container: gives it its file tree, waits for it, writes down its end.

Runs as a program of its own (`unshare -Urmu python -I -S shim.py ATTEMPT_DIRECTORY`), with nothing
but the standard library, so that it stays small and outlives the kubelet. The folder holds
`spec.json` (written by the kubelet before), then `shim.json` and finally `exit.json` (from here).

The file tree: a new root whose entries are the machine's own, bound one by one. Where a mountPath
does not exist on the machine, the deepest folder that does is replaced by a copy of itself made of
bind mounts, in which the missing names can be created: nothing is ever created on the machine.

As child subreaper it inherits what the container leaves behind, and ends it with the container.
"""

import ctypes
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping

MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
CANNOT_START = 128

_libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str, target: str, flags: int, kind: str = "") -> None:
    result = _libc.mount(source.encode(), target.encode(), kind.encode() or None, flags, None)
    check(result, f"mount {source} on {target}")


def bind(source: str, target: str) -> None:
    """A recursive bind mount: a plain one is refused where mounts lie below the source."""
    mount(source, target, MS_BIND | MS_REC)


def start_ticks(pid: int) -> int:
    with open(f"/proc/{pid}/stat", "rb") as file:
        stat = file.read()
    return int(stat[stat.rindex(b")") + 2 :].split()[19])


def write_json(path: str, value: Mapping[str, object]) -> None:
    with open(path + ".new", "w") as file:
        json.dump(value, file)
    os.replace(path + ".new", path)


def copy_of_binds(source: str, target: str) -> None:
    """Makes `target` a folder in memory with every entry of `source` bound into it."""
    mount("tmpfs", target, 0, "tmpfs")
    for entry in os.scandir(source):
        there = os.path.join(target, entry.name)
        try:
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), there)
                continue
            if entry.is_dir(follow_symlinks=False):
                os.mkdir(there)
            else:
                os.close(os.open(there, os.O_CREAT | os.O_WRONLY))
            bind(entry.path, there)
        except FileNotFoundError:
            continue  # it went away meanwhile, as files in a busy /tmp or /run do


def make_mount_points(root: str, mounts: list[tuple[str, str]]) -> None:
    """Makes the mountPaths that the machine lacks, in copies of the folders they would lie in."""
    paths = [path for path, _ in mounts]
    missing: list[tuple[str, str, str]] = []
    for path, source in mounts:
        in_volume = any(path.startswith(other + "/") for other in paths)
        if in_volume or os.path.lexists(path):
            continue
        existing = os.path.dirname(path)
        while not os.path.lexists(existing):
            existing = os.path.dirname(existing)
        missing.append((existing, path, source))
    # An outer folder is copied before an inner one, whose copy it would cover.
    for existing in sorted({entry[0] for entry in missing} - {"/"}, key=len):
        copy_of_binds(existing, root + existing)
    for _, path, source in missing:
        make_mount_point(root + path, source)


def make_mount_point(path: str, source: str) -> None:
    if os.path.isdir(source):
        os.makedirs(path, exist_ok=True)
    elif not os.path.lexists(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY))


def place(target: str, source: str, read_only: bool) -> None:
    """Puts a volume at its place; a place inside another volume is made there, as elsewhere."""
    make_mount_point(target, source)
    bind(source, target)
    if read_only:
        # A flag that the file system below has already may not be dropped by a remount.
        kept = os.statvfs(target).f_flag & (os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC)
        mount("none", target, MS_REMOUNT | MS_BIND | MS_RDONLY | kept)


def enter_file_tree(scratch: str, mounts: list[dict[str, object]], kept: list[str]) -> None:
    """Makes the container's file tree below `scratch` and its root the root of this process."""
    mount("none", "/", MS_REC | MS_PRIVATE)
    copy_of_binds("/", scratch)
    # Links on the way (/var/run -> /run) are followed as the container will follow them; outer
    # mountPaths come first, so that an inner one lands in what is already there.
    placed = sorted(
        ((os.path.realpath(str(entry["path"])), entry) for entry in mounts),
        key=lambda item: item[0],
    )
    make_mount_points(scratch, [(path, str(entry["source"])) for path, entry in placed])
    for path, entry in placed:
        place(scratch + path, str(entry["source"]), bool(entry["read_only"]))
    for path in kept:
        # A folder of the machine that a volume covers (a checkout below /tmp) is still needed; what
        # stands there in the volume is at most the mount point of an earlier container.
        covered = any(path.startswith(volume + "/") for volume, _ in placed)
        if covered and os.path.exists(path):
            place(scratch + path, path, False)
    os.chdir(scratch)
    number = SYS_PIVOT_ROOT[os.uname().machine]
    check(_libc.syscall(number, b".", b"."), "pivot_root")
    check(_libc.umount2(b".", MNT_DETACH), "umount of the old root")
    os.chdir("/")


def children_of(pid: int) -> list[int]:
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(child) for child in file.read().split()]
    except FileNotFoundError:
        return []


def end_what_is_left() -> None:
    """Kills and reaps every process that the container left behind."""
    while left := children_of(os.getpid()):
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for pid in left:
            try:
                os.waitpid(pid, 0)
            except ChildProcessError:
                continue


def start(spec: dict[str, object]) -> int:
    """Forks the container's process; its parent's death is its own."""
    parent = os.getpid()
    child = os.fork()
    if child:
        return child
    try:
        for number in FORWARDED:
            signal.signal(number, signal.SIG_DFL)
        # The interpreter ignores SIGPIPE, and what is ignored stays so over exec.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.setsid()
        check(_libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
        if os.getppid() != parent:
            os._exit(CANNOT_START)
        argv, environment = spec["argv"], spec["environment"]
        assert isinstance(argv, list)
        assert isinstance(environment, dict)
        os.chdir(str(spec["directory"]))
        os.environ.clear()
        os.environ.update(environment)
        os.execvpe(argv[0], argv, environment)
    except BaseException as error:
        os.write(2, f"cannot start {spec['argv']}: {error}\n".encode())
        os._exit(CANNOT_START)


def exit_record(status: int, started: float) -> dict[str, object]:
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    code = 128 + number if number else os.WEXITSTATUS(status)
    return {"code": code, "signal": number, "started": started, "finished": time.time()}


def main(directory: str) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    with open(os.path.join(directory, "spec.json")) as file:
        spec = json.load(file)
    # Reached by descriptor: after the root is changed the folder may lie behind a volume.
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    here = f"/proc/self/fd/{handle}"
    started = time.time()
    own = {"pid": os.getpid(), "ticks": start_ticks(os.getpid()), "started": started}
    try:
        check(_libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")
        socket.sethostname(spec["hostname"])
        enter_file_tree(spec["scratch"], spec["mounts"], spec["kept"])
        child = start(spec)
    except (OSError, KeyError) as error:
        print(f"cannot set up the container: {error}", file=sys.stderr, flush=True)
        ended = {"code": CANNOT_START, "signal": 0, "started": started, "finished": time.time()}
        write_json(f"{here}/exit.json", ended | {"setup_error": str(error)})
        return
    write_json(f"{here}/shim.json", own | {"child": child, "child_ticks": start_ticks(child)})
    status = supervise(child)
    end_what_is_left()
    write_json(f"{here}/exit.json", exit_record(status, started))


def supervise(child: int) -> int:
    """Passes signals on to the container and reaps until the container's own process ends."""
    waited = {*FORWARDED, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    while True:
        # A child that ended before the mask was set is found here, not by its signal.
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return 0
            if pid == child:
                return status
            if pid == 0:
                break
        number = signal.sigwait(waited)
        if number != signal.SIGCHLD:
            os.kill(child, number)


if __name__ == "__main__":
    main(sys.argv[1])
