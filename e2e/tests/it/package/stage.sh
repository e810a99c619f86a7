# A copy of this system in which packages are installed for a try: `stage.sh DEB PINGPONG`, in namespaces of its own for mounts
# and for the network, whose ports nobody else has. What is written there lies in memory and goes with them. Says what it finds
# on standard output.
set -eu
ip link set lo up
deb=$1
pingpong=$2

top=$(mktemp -d)
mount -t tmpfs tmpfs "$top"
mkdir "$top/upper" "$top/work" "$top/root"
if ! mount -t overlay overlay -o "lowerdir=/,upperdir=$top/upper,workdir=$top/work" "$top/root"; then
    echo "no overlay"
    exit
fi
root=$top/root
mount --rbind /dev "$root/dev"
mount --make-rslave "$root/dev"
mount -t tmpfs tmpfs "$root/dev/shm"
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/run"
mkdir -p "$root/mnt"
cp "$deb" "$root/mnt/shunt.deb"
cp "$pingpong" "$root/mnt/pingpong"

cat >"$root/mnt/try.sh" <<'TRY'
set -eu
cd /
export PATH=/usr/bin:/bin:/usr/sbin:/sbin
unset SHUNT_PRELOAD SHUNT_DIR SHUNT_CONFIG LD_PRELOAD HOME XDG_CONFIG_HOME || true
has() { if [ -e "$1" ]; then echo "has $1"; else echo "lacks $1"; fi; }

dpkg --no-triggers --install /mnt/shunt.deb >&2
dpkg --verify shunt
shunt --version
dpkg-query --show --showformat='version ${Version}\n' shunt
bash -c '. /usr/share/bash-completion/completions/shunt && complete -p shunt >/dev/null && echo "bash completes"'
has /usr/share/man/man1/shunt-run.1.gz
has /usr/lib/systemd/system/shunt-engine.service
has /usr/share/shunt/avahi/shunt-serve.service
has /usr/share/shunt/monitoring/shunt.rules.yml

# The program finds its library, and both find the file of settings.
shunt run -- /mnt/pingpong server 7000 &
server=$!
for _ in $(seq 100); do
    [ -z "$(shunt stat --all | grep LISTEN || true)" ] || break
    sleep 0.1
done
shunt run --log info -- /mnt/pingpong client 7000 --seconds 0.3 2>&1 >/dev/null | grep -o 'attached after'
kill "$server"

# Containers are told of it by a name that only the C library of ours takes for a file.
shunt share --group 61100 --containers /dev/shm/shared >/mnt/shared
ls -d /dev/shm/shared/board-all-*
told=$(grep -o "LD_PRELOAD=[^']*" /mnt/shared)
echo "$told"
env "$told" SHUNT_DIR=/dev/shm/shared grep -o 'libshunt_preload.so$' /proc/self/maps | sort -u
rm -r /dev/shm/shared

# Settings are the administrator's, and outlive the package until it is purged; users outlive that as well.
sed -i '1i nonsense = 1' /etc/shunt/config.toml
shunt run -- /bin/true 2>&1 | grep -o '/etc/shunt/config.toml:[0-9]*' || true
echo 'ann:1000:-::' >/etc/shunt/users
dpkg --no-triggers --install /mnt/shunt.deb >&2
grep -c nonsense /etc/shunt/config.toml
dpkg --no-triggers --remove shunt >&2
has /usr/bin/shunt
has /etc/shunt/config.toml
dpkg --no-triggers --purge shunt >&2
has /etc/shunt/config.toml
has /etc/shunt/users
has /usr/lib/shunt
TRY
chroot "$root" /bin/sh /mnt/try.sh
