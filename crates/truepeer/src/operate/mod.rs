//! Commands that watch and steer a running truepeer: `status`, `sessions` and `top`.

mod sessions;
mod status;
pub(crate) mod units;

pub(crate) use sessions::sessions;
pub(crate) use status::status;
