# The first process of a machine of its own: namespaces, a root that is this machine's with all changes in memory, and
# systemd. Words: a directory to mount it at, the program, the folder of units, a control group's file of processes, the
# library.
set -e
if [ -n "$4" ]; then
    echo $$ >"$4"
    exec unshare --mount --pid --fork --kill-child --net --uts --ipc --cgroup --propagation private \
        sh "$0" "$1" "$2" "$3" "" "$5"
fi
mount -t tmpfs none "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
root=$1/root
mount -t proc proc "$root/proc"
# What is the kernel's own is everybody's: nothing of it is to be set from here.
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,bind,ro "$root/proc/sys"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount --rbind /dev "$root/dev"
cp "$2" "$1/shunt"
cp "$3/shunt-serve.service" "$3/shunt-serve.socket" "$3/shunt-engine@.service" "$3/shunt-engine.service" "$1/"
for directory in run tmp var/log etc/systemd/system; do
    mkdir -p "$root/$directory"
    mount -t tmpfs none "$root/$directory"
done
units=$root/etc/systemd/system
mv "$1/shunt-serve.service" "$1/shunt-serve.socket" "$1/shunt-engine@.service" "$1/shunt-engine.service" "$units/"
for unit in binfmt modules-load remount-fs sysctl sysusers tmpfiles-setup tmpfiles-setup-dev udevd; do
    ln -s /dev/null "$units/systemd-$unit.service"
done
printf '[Unit]\nDescription=Nothing of its own\nAllowIsolate=yes\n' >"$units/shunt-test.target"
mkdir -p "$root/usr/bin" "$root/etc/shunt" "$root/srv/files" "$root/opt/closed"
mv "$1/shunt" "$root/usr/bin/shunt"
cp "$5" "$root/usr/bin/"
printf '[serve.share.files]\npath = "/srv/files"\n[serve.share.closed]\npath = "/opt/closed"\n' \
    >"$root/etc/shunt/config.toml"
rm -f "$root/etc/shunt/users"
echo pw | chroot "$root" /usr/bin/shunt serve user add ann --users /etc/shunt/users
ip link set lo up
mkdir "$root/before"
cd "$root"
pivot_root . before
umount -l /before
container=test exec /usr/lib/systemd/systemd --system --unit=shunt-test.target --show-status=no
