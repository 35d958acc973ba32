# Packages of any Debian release in a directory, not installed; to be sourced.

# Downloads packages with all that they depend on, to DIRECTORY/debs, from the mirror of this machine's apt. NAME:arm64 is one of
# another architecture.
debian_packages() { # DIRECTORY RELEASE PACKAGE...
  local home=$1 release=$2 mirror options foreign
  shift 2
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | head -1)
  mkdir -p "$home/apt/lists/partial" "$home/apt/cache" "$home/debs/partial"
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $release main" >"$home/apt/sources.list"
  # As if nothing were installed: otherwise apt would leave out what is installed already.
  options=(-q -o "Dir::Etc::SourceList=$home/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null -o "Dir::State::lists=$home/apt/lists"
           -o "Dir::Cache=$home/apt/cache" -o "Dir::Cache::archives=$home/debs" -o Dir::State::status=/dev/null -o Debug::NoLocking=1
           -o APT::Sandbox::User= -o Acquire::Languages=none -o Dpkg::Use-Pty=0 -o Acquire::Retries=3
           -o "APT::Architectures::=$(dpkg --print-architecture)")
  for foreign in $(printf '%s\n' "$@" | sed -n 's/.*://p' | sort -u); do options+=(-o "APT::Architectures::=$foreign"); done
  say "downloading (not installing) from $release: $*"
  apt-get "${options[@]}" update >"$home/apt.log" 2>&1 &&
    apt-get "${options[@]}" -y --no-install-recommends --download-only install "$@" >>"$home/apt.log" 2>&1 ||
    { tail -3 "$home/apt.log"; return 1; }
  rm -rf "$home/apt"
}
