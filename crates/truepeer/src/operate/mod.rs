//! Commands that watch and steer a running truepeer: `status` and `sessions`.

mod sessions;
mod status;

pub(crate) use sessions::sessions;
pub(crate) use status::status;
