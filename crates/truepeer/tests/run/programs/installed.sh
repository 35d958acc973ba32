# installed.sh DIR COMMAND…: executes the command where the unpacked packages are installed, in a private mount
# namespace. DIR is an empty directory for everything that is written.
set -e
dir=$1
shift
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
unset LD_LIBRARY_PATH
mount -t tmpfs -o mode=755 tmpfs "$dir"
for part in usr etc var; do
  mkdir "$dir/$part" "$dir/$part.work"
  mount -t overlay -o "lowerdir=/run/testbed/servers/root/$part:/$part,upperdir=$dir/$part,workdir=$dir/$part.work" \
    overlay "/$part"
done
cp /run/testbed/-etc-passwd /etc/passwd
cp /run/testbed/-etc-group /etc/group
