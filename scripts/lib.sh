# Shared by the other scripts; to be sourced.
cd "$(dirname "${BASH_SOURCE[0]}")/.."
for programs in "$HOME/.cargo/bin" /usr/sbin /sbin; do
  case ":$PATH:" in *":$programs:"*) ;; *) PATH=$PATH:$programs ;; esac
done
unset programs
export PATH
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")

# Prints the words to put before a command that needs root; fails if root is not available without a password.
as_root() {
  if [ "$(id -u)" = 0 ]; then echo env
  elif command -v sudo >/dev/null && { sudo -n true 2>/dev/null || { [ -t 0 ] && [ -t 1 ]; }; }; then echo sudo env
  else return 1; fi
}

# Installs Debian packages by name and prints that. Fails if that is not possible.
apt_install() {
  local root
  command -v apt-get >/dev/null && root=$(as_root) || return 1
  echo "setup: installing with apt: $*"
  mkdir -p "$target/logs"
  $root DEBIAN_FRONTEND=noninteractive sh -c "apt-get update -q && apt-get install -qy --no-install-recommends $*" \
    >"$target/logs/apt.log" 2>&1 </dev/null || { tail -5 "$target/logs/apt.log"; return 1; }
}

# Adds a target to the toolchain in use, if rustup may: add_rust_target NAME. Otherwise the build says what is missing.
add_rust_target() {
  if command -v rustup >/dev/null; then rustup target add "$1" >/dev/null 2>&1 || true; fi
}
