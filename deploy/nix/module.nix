# NixOS: services.truepeer.enable = true; services.truepeer.settings is truepeer.toml.
self:
{
  config,
  lib,
  pkgs,
  ...
}:
let
  cfg = config.services.truepeer;
  toml = pkgs.formats.toml { };
  file = toml.generate "truepeer.toml" cfg.settings;
in
{
  options.services.truepeer = {
    enable = lib.mkEnableOption "truepeer, by which backends see the client behind the PROXY protocol";
    package = lib.mkOption {
      type = lib.types.package;
      default = self.packages.${pkgs.stdenv.hostPlatform.system}.truepeer;
      defaultText = lib.literalExpression "the flake's truepeer";
      description = "The package to run.";
    };
    settings = lib.mkOption {
      type = toml.type;
      default = { };
      example = lib.literalExpression ''{ proxy = [ { listen = [ ":8443" ]; "4" = "127.0.0.1:443"; allow = [ "10.0.0.7" ]; } ]; }'';
      description = "truepeer.toml(5).";
    };
  };

  config = lib.mkIf cfg.enable {
    environment.systemPackages = [ cfg.package ];
    environment.etc."truepeer/truepeer.toml".source = file;
    # The package's own unit, with this package's path.
    systemd.packages = [ cfg.package ];
    systemd.services.truepeer = {
      wantedBy = [ "multi-user.target" ];
      reloadTriggers = [ file ];
    };
  };
}
