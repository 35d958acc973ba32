//! Commands that watch and steer a running truepeer: `status`, `sessions` and `top`.

mod sessions;
mod status;
mod top;

pub use sessions::sessions;
pub use status::status;
pub use top::top;
