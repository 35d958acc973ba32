//! Certificates that an ACME authority issues, and what they need of the listeners.

use std::sync::Arc;

use truepeer_acme::{Acme, Answer, ExternalAccount, Server, Settings, Stored, Wanted, stored};
use truepeer_config::plan::{AcmeNames, ProcessConfig};
use truepeer_https::challenges::Challenges;
use truepeer_stream::tls::IssuedCertificate;

/// Keeps them current while there are names for them.
#[derive(Default)]
pub(super) struct Certificates {
    challenges: Arc<Challenges>,
    running: Option<Acme>,
}

impl Certificates {
    /// The answers that listeners give.
    pub(super) fn challenges(&self) -> Arc<Challenges> {
        Arc::clone(&self.challenges)
    }

    /// Serves the certificates that are kept, before listeners open.
    pub(super) fn load(&self, config: &ProcessConfig) {
        let settings = settings(config);
        for AcmeNames { names, .. } in config.acme_names() {
            // Whatever is wrong with one, the thread logs it.
            if let Ok(Some(kept)) = stored(&settings, &names) {
                let _ = IssuedCertificate::of(&names).set(&kept.pem);
            }
        }
    }

    /// Looks after these names from now on.
    pub(super) fn apply(&mut self, config: &ProcessConfig) -> anyhow::Result<()> {
        let wanted: Vec<_> = config.acme_names().into_iter().map(wanted).collect();
        if wanted.is_empty() {
            self.stop();
            return Ok(());
        }
        match &self.running {
            Some(acme) => acme.set(settings(config), wanted),
            None => {
                let listeners = Listeners(self.challenges());
                self.running = Some(Acme::start(settings(config), wanted, Box::new(listeners))?);
            }
        }
        Ok(())
    }

    /// Orders nothing more.
    pub(super) fn stop(&mut self) {
        self.running = None;
    }
}

fn wanted(AcmeNames { names, has_http }: AcmeNames) -> Wanted {
    Wanted { names, has_http }
}

fn settings(config: &ProcessConfig) -> Settings {
    let acme = &config.acme;
    Settings {
        directory: acme.directory.0.clone(),
        email: acme.email.clone(),
        state: acme.state.clone(),
        external: acme.external.clone().map(|(id, key)| ExternalAccount { id, key }),
        roots: acme.ca.clone(),
    }
}

/// All listeners of this process.
struct Listeners(Arc<Challenges>);

impl Server for Listeners {
    fn answer(&self, answer: &Answer) -> Result<(), String> {
        match answer {
            Answer::Http { token, text } => {
                self.0.answer_http(token, text);
                Ok(())
            }
            Answer::Tls { name, digest } => self.0.answer_tls(name, digest),
        }
    }

    fn withdraw(&self, answer: &Answer) {
        match answer {
            Answer::Http { token, .. } => self.0.withdraw_http(token),
            Answer::Tls { name, .. } => self.0.withdraw_tls(name),
        }
    }

    fn install(&self, names: &[String], stored: &Stored) -> Result<(), String> {
        IssuedCertificate::of(names).set(&stored.pem)
    }
}
