# Compilers for other processors and for musl; to be sourced. cross_to TRIPLE sets variables for builds:
#   cross        assignments, for env
#   cross_cargo  more arguments of cargo build
#   cross_run    the command that runs a built program here
#   cross_flags  flags of rustc, for RUSTFLAGS
#   cross_strip  the strip for it
# The standard library is rustup's. Where rustup can't get it, and with TRUEPEER_CROSS=debian, Debian's compiler of sid is used,
# unpacked in target/cross and not installed: it comes with that of other processors, and with the source, of which one for musl is
# built.
. scripts/debian-packages.sh
cross_home=$target/cross
host_machine=$(uname -m)

cross_to() { # TRIPLE
  local triple=$1 machine=${1%%-*} name=${1//-/_} gcc=cc need
  cross=() cross_cargo=() cross_run=() cross_flags=() cross_strip=strip
  [ "$triple" != "$host_machine-unknown-linux-gnu" ] || return 0
  [ "${TRUEPEER_CROSS-}" = debian ] || add_rust_target "$triple"
  [ "${TRUEPEER_CROSS-}" != debian ] && [ -d "$(rustc --print target-libdir --target "$triple")" ] || debian_rustc "$triple"
  if [ "$machine" != "$host_machine" ]; then
    gcc=$machine-linux-gnu-gcc
    need=gcc-${machine//_/-}-linux-gnu
    command -v "$gcc" >/dev/null || apt_install "$need" "libc6-dev-$(debian_name "$machine")-cross" ||
      { say "missing: $need"; return 1; }
    cross_run=("qemu-$machine-static")
    command -v "${cross_run[0]}" >/dev/null || apt_install qemu-user-static || { say "missing: qemu-user-static"; return 1; }
    # /usr/lib is of this processor.
    case $triple in *-gnu) cross_run+=(-L "/usr/$machine-linux-gnu") ;; esac
  fi
  case $triple in
    *-musl)
      musl_gcc "$machine" "$gcc" || return 1
      cross+=("CC_$name=$musl_cc")
      # rustup's target brings musl, Debian's compiler does not.
      if [ ${#cross_cargo[@]} -gt 0 ]; then cross+=("CARGO_TARGET_${name^^}_LINKER=$musl_cc")
      elif [ "$gcc" != cc ]; then cross+=("CARGO_TARGET_${name^^}_LINKER=$gcc"); fi ;;
    *) [ "$gcc" = cc ] || cross+=("CC_$name=$gcc" "CARGO_TARGET_${name^^}_LINKER=$gcc") ;;
  esac
  [ "$gcc" = cc ] || cross_strip=${gcc%gcc}strip
}

# Sets `portable`, assignments for env: the flags of compilers, so that no path of this machine is in what is built.
without_paths() {
  local cargo=${CARGO_HOME:-$HOME/.cargo} prefixes rust
  prefixes=("$PWD=." "$target=target" "$cargo=cargo")
  rust=$(printf ' --remap-path-prefix=%s' "${prefixes[@]}")
  portable=("RUSTFLAGS=${RUSTFLAGS:-}$rust ${cross_flags[*]}" "CFLAGS=$(printf ' -ffile-prefix-map=%s' "${prefixes[@]}")")
}

# Debian's name of a processor.
debian_name() {
  case $1 in x86_64) echo amd64 ;; aarch64) echo arm64 ;; *) echo "$1" ;; esac
}

# The compiler of sid. Its programs need a newer libc than this machine may have, and bring it.
debian_rustc() { # TRIPLE
  local root=$cross_home/rust deb name other=aarch64 library
  [ "$host_machine" = x86_64 ] || other=x86_64
  if [ ! -x "$cross_home/rustc" ]; then
    rm -rf "$cross_home/rust"
    debian_packages "$cross_home/rust" sid rustc rust-src "libstd-rust-dev:$(debian_name $other)" || return 1
    for deb in "$root"/debs/*.deb; do
      name=$(basename "$deb")
      case $name in
        rust-src_* | libstd-rust-dev_*) ;;
        *_"$(debian_name $other)".deb | *gcc-[0-9]*-linux-gnu* | cpp* | binutils*) continue ;; # what no compiler of Rust calls
      esac
      dpkg-deb -x "$deb" "$root"
    done
    rm -r "$root/debs"
    library=$(dirname "$(find "$root/usr/lib" -name 'librustc_driver-*.so' | head -1)")
    printf '#!/bin/sh\nexec %s --library-path %s %s --sysroot %s "$@"\n' "$(ls "$library"/ld-linux-*.so.*)" "$library" \
      "$root/usr/bin/rustc" "$root/usr" >"$cross_home/rustc.new"
    chmod +x "$cross_home/rustc.new"
    mv "$cross_home/rustc.new" "$cross_home/rustc"
  fi
  say "the compiler for $1 is Debian's: $("$cross_home/rustc" --version)"
  cross+=("RUSTC=$cross_home/rustc")
  case $1 in
    *-musl)
      mkdir -p "$cross_home/unwind-$1"
      cross+=(RUSTC_BOOTSTRAP=1)
      cross_cargo+=(-Z build-std=std,panic_unwind)
      cross_flags+=(-Clink-self-contained=no "-L$cross_home/unwind-$1") ;;
  esac
}

# A gcc for musl, `$musl_cc`: this machine's musl-gcc, or one made of the specs of Debian's package, for another processor and for
# Debian's compiler: older specs than sid's don't know static programs that run at any address.
musl_gcc() { # MACHINE GCC
  local home=$cross_home/musl-$1 deb unwind=$cross_home/unwind-$1-unknown-linux-musl
  musl_cc=$home/gcc
  if [ "$1" = "$host_machine" ] && [ ${#cross_cargo[@]} = 0 ]; then
    musl_cc=musl-gcc
    command -v musl-gcc >/dev/null || apt_install musl-tools || { say "musl-gcc is missing: apt-get install musl-tools"; return 1; }
  elif [ ! -x "$musl_cc" ]; then
    rm -rf "$home"
    debian_packages "$home" sid "musl-dev:$(debian_name "$1")" || return 1
    for deb in "$home"/debs/musl*.deb; do dpkg-deb -x "$deb" "$home"; done
    rm -r "$home/debs"
    sed "s|/usr/|$home/usr/|g" "$home/usr/lib/$1-linux-musl/musl-gcc.specs" >"$home/specs"
    printf '#!/bin/sh\nexec %s "$@" -specs %s\n' "$2" "$home/specs" >"$musl_cc.new"
    chmod +x "$musl_cc.new"
    mv "$musl_cc.new" "$musl_cc"
  fi
  # Rust's name of the library that unwinds is LLVM's; gcc's has the same functions.
  [ ! -d "$unwind" ] || ln -sf "$("$2" -print-file-name=libgcc_eh.a)" "$unwind/libunwind.a"
}
