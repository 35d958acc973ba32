{
  lib,
  rustPlatform,
  clang,
  cmake,
  installShellFiles,
  libbpf,
  linuxHeaders,
  llvm,
}:
rustPlatform.buildRustPackage {
  pname = "truepeer";
  version = (lib.importTOML ../../Cargo.toml).workspace.package.version;
  src = lib.cleanSource ../..;
  cargoLock.lockFile = ../../Cargo.lock;
  cargoBuildFlags = [
    "-p"
    "truepeer"
  ];
  # The tests need root and namespaces.
  doCheck = false;
  nativeBuildInputs = [
    clang
    cmake
    installShellFiles
    llvm
  ];
  dontUseCmakeConfigure = true;
  # clang's wrapper adds flags of the machine, which BPF has not; the kernel's headers and libbpf's are named instead.
  hardeningDisable = [ "all" ];
  env = {
    CPATH = "${libbpf}/include:${linuxHeaders}/include";
    TRUEPEER_REQUIRE_CLANG = "1";
    TRUEPEER_REQUIRE_LIBRARY = "1";
  };
  postInstall = ''
    $out/bin/truepeer man .
    installManPage *.1 *.5
    for shell in bash zsh fish; do $out/bin/truepeer completion $shell >completion.$shell; done
    installShellCompletion --cmd truepeer --bash completion.bash --zsh completion.zsh --fish completion.fish
    install -Dm644 -t $out/lib/systemd/system deploy/systemd/truepeer*
    substituteInPlace $out/lib/systemd/system/truepeer* --replace-quiet /usr/bin/truepeer $out/bin/truepeer
  '';
  meta = {
    description = "Backends see the client behind the PROXY protocol";
    license = with lib.licenses; [
      mit
      asl20
    ];
    platforms = lib.platforms.linux;
    mainProgram = "truepeer";
  };
}
