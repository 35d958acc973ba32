//! Which senders are admitted, and which clients they may name: shared by all commands that receive headers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use truepeer_bpf::RequiredSecret;
use truepeer_policy::{
    Claims, Dialect, HeaderRule, HostAddresses, PrefixSet, Proof, Secrets, Senders, SentTlv,
};
use truepeer_proto::Versions;

use super::problem::{OptionName, Problem};
use crate::spec::{
    HeaderOption, PrefixesOrFile, RequiredTlv, SecretTlv, SenderName, SenderRule, SendersSpec, text,
};

/// A list in a file, and the option that named it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "PathBuf", into = "PathBuf")]
pub struct ListFile {
    pub place: OptionName,
    pub path: PathBuf,
}

/// Which senders may connect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SendersConfig {
    #[serde(with = "text::prefixes")]
    pub allow: PrefixSet,
    /// Files with further senders, one prefix on each line; read again on reload.
    pub allow_files: Vec<ListFile>,
    #[serde(with = "text::one")]
    pub header: HeaderRule,
    /// The rules of specific senders.
    #[serde(with = "text::list")]
    pub rules: Vec<SenderRule>,
    /// By which TLVs senders prove themselves.
    pub(crate) require_tlv: Vec<RequiredTlv>,
    /// What the senders are, if that was said.
    #[serde(with = "text::maybe")]
    pub(crate) sender: Option<SenderName>,
}

/// Which clients may be claimed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClaimsConfig {
    #[serde(with = "text::prefixes")]
    pub allow: PrefixSet,
    /// Whether this host's own addresses may be claimed, as the programs behind the drop-in names allow it.
    pub allow_host: bool,
    /// Clients to refuse.
    #[serde(with = "text::prefixes")]
    pub deny: PrefixSet,
    /// Files with further ones, one prefix on each line; read again on reload.
    pub deny_files: Vec<PathBuf>,
}

impl Default for SendersConfig {
    fn default() -> Self {
        Self {
            allow: PrefixSet::loopback(),
            allow_files: Vec::new(),
            header: HeaderRule::Require,
            rules: Vec::new(),
            require_tlv: Vec::new(),
            sender: None,
        }
    }
}

impl SendersSpec {
    /// The lists that are files.
    pub(super) fn files(&self) -> impl Iterator<Item = &Path> {
        let denied = self.deny_clients.iter().map(|deny| &deny.0);
        let lists = self.allow.iter().chain(denied).filter_map(|entry| match entry {
            PrefixesOrFile::File(path) => Some(path.as_path()),
            PrefixesOrFile::Prefixes(_) => None,
        });
        lists.chain(self.require_tlv.iter().map(|required| required.tlv.file.as_path()))
    }
}

impl SendersConfig {
    /// `usual`: the default senders and their rule. Any list replaces the default.
    pub(super) fn of(
        spec: &SendersSpec,
        subnets: &[PathBuf],
        usual: (&PrefixSet, HeaderRule),
    ) -> Result<Self, Problem> {
        let (mut allow, files) = split(&spec.allow);
        let placed = |option| move |path: PathBuf| ListFile { place: OptionName(option), path };
        let subnets = subnets.iter().cloned().map(placed("allowed-subnets"));
        let allow_files: Vec<_> = files.into_iter().map(placed("allow")).chain(subnets).collect();
        if allow.is_empty() && allow_files.is_empty() {
            allow.extend(usual.0);
        }
        let (rule, rules) = header_rules(&spec.header)?;
        // Whoever names the sender expects its headers.
        let usual = spec.sender.map_or(usual.1, |_| HeaderRule::Require);
        let require_tlv = spec.require_tlv.clone();
        refuse_two_for_one(&require_tlv)?;
        let header = rule.unwrap_or(usual);
        let config = Self { allow, allow_files, header, rules, require_tlv, sender: spec.sender };
        config.refuse_idle_tlv()?;
        Ok(config)
    }

    /// The versions of the header that are accepted.
    pub fn versions(&self) -> Versions {
        self.sender.map_or(Versions::BOTH, SenderName::versions)
    }

    /// What `--sender` stands for here. `dialect`: of the datagrams, if there are any.
    pub(super) fn note(&self, dialect: Option<Dialect>) -> Option<String> {
        self.sender.map(|sender| sender.sets(self.header, dialect))
    }

    /// The rule of each prefix. A later one replaces an earlier one, as in the policy.
    pub fn exceptions(&self) -> BTreeMap<IpNet, HeaderRule> {
        let each =
            |rule: &SenderRule| -> Vec<_> { rule.senders.iter().map(|net| (net, rule.rule)).collect() };
        self.rules.iter().flat_map(each).collect()
    }

    fn files(&self) -> impl Iterator<Item = (OptionName, &Path)> {
        self.allow_files.iter().map(|file| (file.place, file.path.as_path()))
    }

    /// Reads the files.
    pub(super) fn allowed(&self) -> Result<PrefixSet, Problem> {
        with_files(&self.allow, self.files())
    }

    /// Refuses a required TLV where no header is read.
    fn refuse_idle_tlv(&self) -> Result<(), Problem> {
        let forbids = |rule| rule == HeaderRule::Forbid;
        let reads = !forbids(self.header) || self.rules.iter().any(|rule| !forbids(rule.rule));
        if reads || self.require_tlv.is_empty() {
            return Ok(());
        }
        Err(Problem::at("require-tlv", "no header is read here; expected --header require with it"))
    }

    /// Reads the files of secrets.
    pub(super) fn secrets(&self) -> Result<Vec<Secrets>, Problem> {
        let files = self.require_tlv.iter().map(|required| &required.tlv.file);
        files.map(|file| read_secrets("require-tlv", file)).collect()
    }

    /// By which TLV which senders prove themselves. `secrets`: the result of [`Self::secrets`].
    pub(super) fn proofs(&self, secrets: &[Secrets]) -> Vec<(PrefixSet, Proof)> {
        let proof = |(required, secrets): (&RequiredTlv, &Secrets)| {
            let SecretTlv { kind, is_keyed, .. } = required.tlv;
            let proof = if is_keyed {
                Proof::keyed(kind, secrets.clone(), since_1970)
            } else {
                Proof::secret(kind, secrets)
            };
            (required.prefixes(), proof)
        };
        self.require_tlv.iter().zip(secrets).map(proof).collect()
    }

    /// The same for the kernel programs.
    pub(super) fn required_tlvs(&self, secrets: Vec<Secrets>) -> Vec<RequiredSecret> {
        let each = self.require_tlv.iter().zip(secrets);
        each.map(|(required, secrets)| RequiredSecret {
            senders: required.prefixes(),
            kind: required.tlv.kind,
            secrets,
        })
        .collect()
    }

    /// Refuses keyed digests where they can't be checked. `why`: the reason, for the message.
    pub(super) fn refuse_keyed(&self, why: &str) -> Result<(), Problem> {
        refuse_keyed("require-tlv", self.require_tlv.iter().map(|required| &required.tlv), why)
    }

    /// `allow` and `secrets`: the results of [`Self::allowed`] and [`Self::secrets`].
    pub(super) fn policy(&self, allow: &PrefixSet, secrets: &[Secrets]) -> Result<Senders, Problem> {
        let mut senders = Senders::new(allow.clone(), self.header);
        self.rules.iter().for_each(|exception| senders.set_rule(&exception.senders, exception.rule));
        self.proofs(secrets).iter().for_each(|(prefixes, proof)| senders.set_proof(prefixes, proof));
        senders.check().map_err(Problem::OptionalForMost)?;
        Ok(senders)
    }
}

impl ClaimsConfig {
    /// `usual`: the claims that are permitted by default.
    pub(super) fn of(spec: &SendersSpec, usual: &PrefixSet, allow_host: bool) -> Self {
        let mut allow = usual.clone();
        spec.allow_claims.iter().for_each(|prefixes| allow.extend(prefixes));
        let (deny, deny_files) = split(spec.deny_clients.iter().map(|deny| &deny.0));
        Self { allow, allow_host, deny, deny_files }
    }

    fn files(&self) -> impl Iterator<Item = (OptionName, &Path)> {
        self.deny_files.iter().map(|path| (OptionName("deny-clients"), path.as_path()))
    }

    /// Reads the files.
    pub(super) fn denied(&self) -> Result<PrefixSet, Problem> {
        with_files(&self.deny, self.files())
    }

    /// `deny`: the result of [`Self::denied`].
    pub(super) fn policy(&self, deny: &PrefixSet) -> Claims {
        let host = if self.allow_host {
            HostAddresses::default()
        } else {
            HostAddresses::new(truepeer_sys::host::is_own_address)
        };
        Claims { allow: self.allow.clone(), deny: deny.clone(), host }
    }
}

/// The sender's datagrams need a dialect.
pub(super) fn no_dialect(sender: SenderName) -> Problem {
    Problem::Value {
        place: OptionName("sender"),
        value: format!(" {sender}"),
        expected: "where its datagrams have the header is not known; expected --udp-dialect DIALECT with it"
            .to_owned(),
    }
}

/// Reads a file of secrets. Errors name lines, never their content.
fn read_secrets(option: &'static str, path: &Path) -> Result<Secrets, Problem> {
    let place = OptionName(option);
    let content =
        std::fs::read(path).map_err(|source| Problem::File { place, path: path.to_owned(), source })?;
    Secrets::parse(&content).map_err(|error| Problem::Value {
        place,
        value: format!(" {}", path.display()),
        expected: error.to_string(),
    })
}

/// Reads the files of TLVs that are sent.
pub(super) fn read_sent(sent: &[SecretTlv]) -> Result<Vec<Secrets>, Problem> {
    sent.iter().map(|tlv| read_secrets("send-tlv", &tlv.file)).collect()
}

/// The TLVs of headers to backends, a keyed digest last. `secrets`: the result of [`read_sent`].
pub(super) fn sent_tlvs(sent: &[SecretTlv], secrets: &[Secrets]) -> Vec<SentTlv> {
    let mut sent: Vec<_> = sent.iter().zip(secrets).collect();
    sent.sort_by_key(|(tlv, _)| tlv.is_keyed);
    let tlv = |(tlv, secrets): (&SecretTlv, &Secrets)| {
        if tlv.is_keyed {
            SentTlv::keyed(tlv.kind, secrets, since_1970)
        } else {
            SentTlv::secret(tlv.kind, secrets)
        }
    };
    sent.into_iter().map(tlv).collect()
}

/// At most one of a type, and one digest, which ends the header.
pub(super) fn refuse_twice_sent(sent: &[SecretTlv]) -> Result<(), Problem> {
    let mut seen = BTreeSet::new();
    if let Some(tlv) = sent.iter().find(|tlv| !seen.insert(tlv.kind)) {
        return Err(Problem::at(
            "send-tlv",
            format!("TLV {:#04x} is given twice; expected it once", tlv.kind),
        ));
    }
    if sent.iter().filter(|tlv| tlv.is_keyed).count() > 1 {
        return Err(Problem::at(
            "send-tlv",
            "a header has room for one digest, at its end; expected one hmac:",
        ));
    }
    Ok(())
}

pub(super) fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Refuses keyed digests. `why`: the reason, for the message.
pub(super) fn refuse_keyed<'a>(
    option: &'static str,
    mut tlvs: impl Iterator<Item = &'a SecretTlv>,
    why: &str,
) -> Result<(), Problem> {
    match tlvs.find(|tlv| tlv.is_keyed) {
        Some(tlv) => {
            let value = format!(" {tlv}");
            Err(Problem::Value {
                place: OptionName(option),
                value,
                expected: format!("{why}; expected TYPE=@FILE"),
            })
        }
        None => Ok(()),
    }
}

/// A later one would replace an earlier one.
fn refuse_two_for_one(required: &[RequiredTlv]) -> Result<(), Problem> {
    let mut seen = BTreeSet::new();
    let mut prefixes = required.iter().flat_map(|one| one.prefixes().iter().collect::<Vec<_>>());
    match prefixes.find(|prefix| !seen.insert(*prefix)) {
        Some(prefix) if prefix.prefix_len() > 0 => Err(Problem::at(
            "require-tlv",
            format!("given twice for {prefix}; expected one TLV, whose file may have four secrets"),
        )),
        Some(_) => Err(Problem::at(
            "require-tlv",
            "given twice for the same senders; expected one TLV, whose file may have four secrets, or PREFIX,TYPE=@FILE",
        )),
        None => Ok(()),
    }
}

/// One rule for all senders, and exceptions for some.
fn header_rules(written: &[HeaderOption]) -> Result<(Option<HeaderRule>, Vec<SenderRule>), Problem> {
    let (mut rule, mut rules) = (None, Vec::new());
    for entry in written {
        match entry {
            HeaderOption::Some(exception) => rules.push(SenderRule::clone(exception)),
            HeaderOption::All(all) if rule.is_none_or(|before| before == *all) => rule = Some(*all),
            HeaderOption::All(_) => return Err(Problem::TwoRules),
        }
    }
    Ok((rule, rules))
}

fn split<'a>(written: impl IntoIterator<Item = &'a PrefixesOrFile>) -> (PrefixSet, Vec<PathBuf>) {
    let (mut prefixes, mut files) = (PrefixSet::new(), Vec::new());
    for entry in written {
        match entry {
            PrefixesOrFile::Prefixes(some) => prefixes.extend(some),
            PrefixesOrFile::File(path) => files.push(path.clone()),
        }
    }
    (prefixes, files)
}

fn with_files<'a>(
    prefixes: &PrefixSet,
    files: impl Iterator<Item = (OptionName, &'a Path)>,
) -> Result<PrefixSet, Problem> {
    let mut all = prefixes.clone();
    for (place, path) in files {
        all.extend(&read(place, path)?);
    }
    Ok(all)
}

fn read(place: OptionName, path: &Path) -> Result<PrefixSet, Problem> {
    let content = std::fs::read_to_string(path).map_err(|source| Problem::File {
        place,
        path: path.to_owned(),
        source,
    })?;
    PrefixSet::parse_file(&content).map_err(|source| Problem::PrefixFile {
        place,
        path: path.to_owned(),
        source,
    })
}

/// Warnings about risky settings, for all commands that receive headers.
pub(super) fn warnings(allow: &PrefixSet, senders: &SendersConfig, claims: &ClaimsConfig) -> Vec<String> {
    let mut warnings = Vec::new();
    let proves_itself = senders.require_tlv.iter().any(|required| required.prefixes().has_everybody());
    if allow.has_everybody() && senders.header != HeaderRule::Forbid && !proves_itself {
        warnings.push(
            "every host may connect and claim to be any client; list your load balancers with --allow PREFIX"
                .to_owned(),
        );
    }
    if allow.is_empty() {
        warnings.push("nobody may connect: the allow-list is empty; add --allow PREFIX".to_owned());
    }
    for (place, path) in senders.files() {
        if read(place, path).is_ok_and(|prefixes| prefixes.is_empty()) {
            warnings.push(format!("{place} {}: the file lists no prefix", path.display()));
        }
    }
    if !claims.allow.is_empty() {
        let host = if claims.allow_host { ", or has an address of this host" } else { "" };
        warnings.push(format!(
            "a header may claim that the client is in {}{host}: a backend that trusts such addresses trusts every sender",
            claims.allow
        ));
    }
    warnings
}

// In a serialised plan, a list is its path alone.
impl From<PathBuf> for ListFile {
    fn from(path: PathBuf) -> Self {
        Self { place: OptionName("allow"), path }
    }
}

impl From<ListFile> for PathBuf {
    fn from(file: ListFile) -> Self {
        file.path
    }
}
