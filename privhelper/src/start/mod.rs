//! What runs before requests are served. A child that looks at what hangs, and the taking over of filesystems in images that
//! do not answer, may go on after that.

pub mod config;
pub mod directory;
pub mod filter;
pub mod host;
pub mod jail;
pub mod judge;
pub mod landlock;
pub mod marker;
mod mounts;
pub mod nodes;
pub mod outside;
pub mod patience;
mod pool;
pub mod privileges;
pub mod proof;
pub mod ready;
pub mod recover;
pub mod refusal;
pub mod split;
pub mod welcome;
