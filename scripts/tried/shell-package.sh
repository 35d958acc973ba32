# An rpm repository with a package that has a shell, which the scripts of other packages need, and the directories that each
# distribution has; to be sourced after lib.sh and
# debian-packages.sh.
shell_package() { # DIRECTORY [MACHINE]
  local machine=${2:-$(uname -m)} deb=amd64 tree
  [ "$machine" = x86_64 ] || deb=arm64
  tree=$target/tried-busybox-$machine
  if [ ! -e "$tree/usr/bin/busybox" ]; then
    debian_packages "$tree" trixie "busybox-static:$deb" || return 1
    dpkg-deb -x "$tree"/debs/busybox-static_*.deb "$tree"
  fi
  mkdir -p "$1"
  cat >"$1/shell.spec" <<END
%global debug_package %{nil}
%global __os_install_post %{nil}
%global _build_id_links none
Name: shell
Version: 1
Release: 1
Summary: a shell
License: GPL-2.0
AutoReqProv: no
Provides: /bin/sh
%description
busybox
%install
install -D $tree/usr/bin/busybox %{buildroot}/bin/busybox
for name in sh ls rm rmdir find; do ln -s busybox %{buildroot}/bin/\$name; done
for name in bin lib/systemd/system share/doc share/licenses share/man/man1 share/man/man5 share/bash-completion/completions \\
  share/fish/vendor_completions.d share/zsh/site-functions; do mkdir -p %{buildroot}/usr/\$name; done
%files
/bin/*
/usr
END
  rpmbuild -bb --quiet --target "$machine" --define "_topdir $1/build" --define "_rpmdir $1" "$1/shell.spec"
  createrepo_c --quiet "$1"
}
