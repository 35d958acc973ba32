//! A truepeer that was built without ACME.

use std::sync::Arc;

use truepeer_config::plan::ProcessConfig;
use truepeer_https::challenges::Challenges;

#[derive(Default)]
pub(super) struct Certificates(Arc<Challenges>);

impl Certificates {
    pub(super) fn challenges(&self) -> Arc<Challenges> {
        Arc::clone(&self.0)
    }

    #[expect(clippy::unused_self, reason = "as with ACME")]
    pub(super) fn load(&self, _config: &ProcessConfig) {}

    #[expect(clippy::unused_self, reason = "as with ACME")]
    pub(super) fn apply(&mut self, config: &ProcessConfig) -> anyhow::Result<()> {
        anyhow::ensure!(config.acme_names().is_empty(), "--acme: this truepeer was built without it");
        Ok(())
    }

    #[expect(clippy::unused_self, reason = "as with ACME")]
    pub(super) fn stop(&mut self) {}
}
