#!/usr/bin/env bash
# The inside of the sandbox: builds a file system that holds only what is listed, then gives up
# every right and becomes the command. sandbox.py starts it in new namespaces and sets:
#   ROOT      an empty folder to mount the new root on
#   CHANNEL   the folder that grader and kernel share, at the same path inside and outside
#   READABLE  what may be read, one path a line; nothing else of the machine is there
#   RUN_AS    the user id to become; empty in a user namespace, where there is only one
#   DISK, FILE, MEMORY, PROCESSES, CPU   limits in bytes, bytes, bytes, number, seconds
set -euo pipefail
umask 022

mount -t tmpfs -o "size=$DISK,nr_inodes=20000,mode=755,nosuid,nodev" sandbox "$ROOT"

bind() { # a path of the machine, at the same place, for reading
  if [ -L "$1" ]; then
    mkdir -p "$ROOT$(dirname "$1")"
    cp -P "$1" "$ROOT$1"
  elif [ -e "$1" ]; then
    if [ -d "$1" ]; then mkdir -p "$ROOT$1"; else mkdir -p "$ROOT$(dirname "$1")"; touch "$ROOT$1"; fi
    mount --bind "$1" "$ROOT$1"
    mount -o "remount,bind,ro,nosuid,nodev" "$ROOT$1"
  fi
}
while IFS= read -r path; do bind "$path"; done <<<"$READABLE"

mkdir -p "$ROOT/dev/shm" "$ROOT/proc" "$ROOT/tmp" "$ROOT$CHANNEL" "$ROOT/home"
for device in null zero full random urandom; do
  touch "$ROOT/dev/$device"
  mount --bind "/dev/$device" "$ROOT/dev/$device"
done
ln -s /proc/self/fd "$ROOT/dev/fd"
mount -t proc -o nosuid,nodev,noexec proc "$ROOT/proc"
chmod 1777 "$ROOT/tmp" "$ROOT/dev/shm"
mount --bind "$CHANNEL" "$ROOT$CHANNEL"
# The home that was prepared is copied, so that nothing outside can be written.
cp -R "$CHANNEL/home" "$ROOT/home/student"
[ -z "$RUN_AS" ] || chown -R "$RUN_AS:$RUN_AS" "$ROOT/home/student"

# A change of user forgets that the end of the parent is its own end: said again.
become=(--bounding-set=-all --inh-caps=-all --no-new-privs --pdeathsig=KILL)
[ -z "$RUN_AS" ] || become+=(--reuid="$RUN_AS" --regid="$RUN_AS" --clear-groups)
limits=(--as="$MEMORY" --nproc="$PROCESSES" --fsize="$FILE" --cpu="$CPU" --nofile=256 --core=0)
setpriv=$(command -v setpriv)
prlimit=$(command -v prlimit)
chroot=$(command -v chroot)
cd "$ROOT"
exec env -i HOME=/home/student PATH=/usr/bin:/bin LANG=C.UTF-8 \
  OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 HF_HUB_OFFLINE=1 MPLBACKEND=agg \
  PYTHONPATH="$PYTHONPATH" PYTHONDONTWRITEBYTECODE=1 PYDEVD_DISABLE_FILE_VALIDATION=1 \
  FIRSTTOKEN_STUDENT="$FIRSTTOKEN_STUDENT" \
  "$prlimit" "${limits[@]}" "$chroot" . "$setpriv" "${become[@]}" \
  sh -c 'cd /home/student && exec "$@"' sh "$@"
