# Root directories for images, without any registry; to be sourced after node.sh. nginx is Debian's; `who` is a static
# program in Go, and one that is linked with musl, as in Alpine. busybox is beside each.

images=$target/images

# Copies a program and the libraries that it is linked with.
with_libraries() { # program, root
  install -D "$1" "$2/${1#"$engines/root/"}"
  libraries_of "$1" "$2"
}

libraries_of() { # program, root
  local library
  LD_LIBRARY_PATH=$engines/root/usr/lib/x86_64-linux-gnu ldd "$1" | grep -o '/[^ ]*' | while read -r library; do
    install -D "$(realpath "$library")" "$2/lib/x86_64-linux-gnu/$(basename "$library")"
  done
}

root_with_busybox() { # name; prints the directory
  local root=$images/$1.new
  rm -rf "$root"
  mkdir -p "$root"/{bin,etc,tmp,run,proc,sys,dev,lib64,var/log/nginx,var/lib/nginx}
  cp "$engines/root/bin/busybox" "$root/bin/busybox"
  for name in sh cat cp ip ls sleep echo; do ln -s busybox "$root/bin/$name"; done
  echo 'root:x:0:0::/:/bin/sh' >"$root/etc/passwd"
  echo 'nobody:x:65534:65534::/:/bin/false' >>"$root/etc/passwd"
  printf 'root:x:0:\nnogroup:x:65534:\n' >"$root/etc/group"
  echo "$root"
}

image_done() { rm -rf "${1%.new}" && mv "$1" "${1%.new}"; } # directory

# Makes those that are missing or older than their sources.
make_images() {
  local root musl=$engines/root/usr/lib/x86_64-linux-musl libc=$engines/root/lib/x86_64-linux-musl from=scripts/containers
  mkdir -p "$images"
  if [ "$from/images.sh" -nt "$images/made" ]; then rm -rf "${images:?}"/*; fi
  touch "$images/made"
  if [ ! "$images/nginx" -nt $from/nginx.conf ]; then
    root=$(root_with_busybox nginx)
    with_libraries "$engines/root/usr/sbin/nginx" "$root"
    with_libraries "$engines/root/usr/lib/nginx/modules/ngx_stream_module.so" "$root"
    cp -L /lib64/ld-linux-x86-64.so.2 "$root/lib64/"
    install -D $from/nginx.conf "$root/etc/nginx/nginx.conf"
    image_done "$root"
  fi
  if [ ! -d "$images/haproxy" ]; then
    root=$(root_with_busybox haproxy)
    with_libraries "$engines/root/usr/sbin/haproxy" "$root"
    cp -L /lib64/ld-linux-x86-64.so.2 "$root/lib64/"
    image_done "$root"
  fi
  if [ ! "$images/go" -nt $from/who.go ]; then
    root=$(root_with_busybox go)
    CGO_ENABLED=0 go build -ldflags '-s -w' -o "$root/bin/who" $from/who.go
    ln -s who "$root/bin/my-server"
    image_done "$root"
  fi
  [ -d "$images/pause" ] || image_done "$(root_with_busybox pause)"
  if [ ! "$images/musl" -nt $from/who.c ]; then
    root=$(root_with_busybox musl)
    cc -O2 -s -Wall -no-pie -nostdinc -isystem "$engines/root/usr/include/x86_64-linux-musl" -nostdlib -o "$root/bin/who" \
      "$musl/crt1.o" "$musl/crti.o" $from/who.c "-L$libc" -lc "$musl/crtn.o" -Wl,-dynamic-linker,/lib/ld-musl-x86_64.so.1
    install -D "$libc/libc.so" "$root/lib/ld-musl-x86_64.so.1"
    image_done "$root"
  fi
}

# truepeer and its agent as they were built for the tests, with their libraries. The image for users is static
# (deploy/docker).
make_agent_image() { # name, agent by default
  local root program made name=${1:-agent}
  made=$(stat -c '%n %y' "$truepeer" "$agent")
  [ ! -d "$images/$name" ] || [ "$(cat "$images/$name.of" 2>/dev/null)" != "$made" ] || return 0
  root=$(root_with_busybox "$name")
  for program in "$truepeer" "$agent"; do
    mkdir -p "$root/usr/bin"
    strip -o "$root/usr/bin/$(basename "$program")" "$program"
    libraries_of "$program" "$root"
  done
  cp -L /lib64/ld-linux-x86-64.so.2 "$root/lib64/"
  image_done "$root"
  echo "$made" >"$images/$name.of"
}

# What an image's container starts.
image_command() { # name; prints JSON
  case $1 in
    nginx) echo '["/usr/sbin/nginx","-g","daemon off;"]' ;;
    haproxy) echo '["/usr/sbin/haproxy","-f","/usr/local/etc/haproxy/haproxy.cfg"]' ;;
    agent | agent-before) echo '["/usr/bin/truepeer-agent"]' ;;
    pause) echo '["/bin/sleep","infinity"]' ;;
    *) echo '["/bin/who"]' ;;
  esac
}
