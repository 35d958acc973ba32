//! Commands that watch and steer a running truepeer: `status`, `sessions` and `top`.

mod sessions;
mod status;
mod top;

pub(crate) use sessions::sessions;
pub(crate) use status::status;
pub(crate) use top::top;
