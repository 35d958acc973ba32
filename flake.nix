{
  description = "truepeer: backends see the client behind the PROXY protocol";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";

  outputs =
    { self, nixpkgs }:
    let
      systems = [
        "x86_64-linux"
        "aarch64-linux"
      ];
      each = function: nixpkgs.lib.genAttrs systems (system: function nixpkgs.legacyPackages.${system});
    in
    {
      packages = each (pkgs: rec {
        truepeer = pkgs.callPackage ./deploy/nix/package.nix { };
        default = truepeer;
      });
      nixosModules.default = import ./deploy/nix/module.nix self;
      overlays.default = final: _: { truepeer = final.callPackage ./deploy/nix/package.nix { }; };
    };
}
