"""What this machine's kernel may lack: NFS, quotas, control groups of version 2 with limits.

Each is made on Debian's User-mode Linux, a kernel that runs as a process, over this machine's files, which it
cannot change.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.needs_root("starts a kernel over all files"), pytest.mark.slow]

MACHINE = """
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb COLUMNS=2000 PIP_INDEX_URL=file:///nowhere
mount -t proc proc /proc && mount -t sysfs sys /sys && mount -t tmpfs run /run && mount -t tmpfs tmp /tmp
mount -t cgroup2 groups /sys/fs/cgroup
mkdir -p /tmp/root/lib /tmp/work && ln -s /usr/lib/uml/modules /tmp/root/lib/modules
for module in overlay loop quota_v2 nfsd nfsv4; do modprobe -d /tmp/root $module; done
ip link set lo up
disk() {
  truncate -s 2G /tmp/image && mkfs.ext4 -q -O quota /tmp/image
  mkdir /tmp/disk && mount -o loop /tmp/image /tmp/disk
}
cd /tmp/work
"""
NFS = """
disk && mount -t tmpfs state /var/lib/nfs
mkdir /var/lib/nfs/{sm,rpc_pipefs,v4recovery} && touch /var/lib/nfs/{etab,rmtab}
mount -t nfsd nfsd /proc/fs/nfsd
exportfs -o rw,no_root_squash,insecure,fsid=0,no_subtree_check 127.0.0.1:/tmp/disk
rpc.mountd --no-udp && rpc.nfsd --no-udp 1 && mount.nfs 127.0.0.1:/ /tmp/work -o vers=4.2 && cd /tmp/work
"""
QUOTA = """
disk && setquota -u 0 51200 51200 0 0 /tmp/disk && cd /tmp/disk
exec() { builtin exec setpriv --bounding-set -sys_resource --inh-caps -sys_resource "$@"; }
"""
LIMITS = """
mkdir /sys/fs/cgroup/limited && echo $$ > /sys/fs/cgroup/limited/cgroup.procs
echo "+memory +pids +cpu" > /sys/fs/cgroup/cgroup.subtree_control
cd /sys/fs/cgroup/limited && echo 512M > memory.max && echo 100 > pids.max && echo "50000 100000" > cpu.max
cd /tmp/work
"""
REFUSED = {
    "NFS": (
        NFS,
        "changes in /tmp/work/.orchard, which is on nfs4 (Invalid argument): put the state directory on",
    ),
    "quota": (
        QUOTA,
        "the disk quota for /tmp/disk leaves less than the 536870912 bytes of nats.reserve_bytes",
    ),
    "limits": (LIMITS, "pids.max of /sys/fs/cgroup/limited is 100, which leaves"),
}
SHOWN = {"limits": "0.5 cores, 0.5 GiB memory"}


@pytest.fixture(scope="module")
def registers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("registers") / "registers.so"
    source = Path(__file__).with_name("registers.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", made, source], check=True)
    return made


def boot(folder: Path, registers: Path, script: str) -> str:
    """What a machine says whose first process is this script."""
    init = folder / "init"
    init.write_text(f"#!/bin/bash\n{MACHINE}{script}\npoweroff --force --no-wtmp\n")
    init.chmod(0o755)
    own = ["unshare", "--pid", "--fork", "--kill-child"]  # its helpers end with it
    command = [
        *own,
        "linux.uml",
        "mem=2G",
        "root=/dev/root",
        "rootfstype=hostfs",
        "rootflags=/",
        "ro",
        "quiet",
    ]
    done = subprocess.run(
        [*command, f"init={init}", "con=null", "con0=null,fd:1"],
        cwd=folder,
        env={
            **os.environ,
            "LD_PRELOAD": str(registers),
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        timeout=500,
        check=False,
    )
    return " ".join(done.stdout.split())


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", REFUSED)
def test_up_and_doctor_refuse_in_the_same_words(name: str, tmp_path: Path, registers: Path) -> None:
    made, sentence = REFUSED[name]
    commands = "\n".join(f"(exec {sys.executable} -m orchard {command} 2>&1)" for command in ("doctor", "up"))
    out = boot(tmp_path, registers, made + commands)
    assert out.count(sentence) == 2, out
    assert SHOWN.get(name, "") in out and "Traceback" not in out
