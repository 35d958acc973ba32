//! What a supervisor beside a program does.

use anyhow::Result;

/// Something that serves until nobody is left.
pub(super) trait Serve {
    fn serve(self) -> Result<()>;
}
