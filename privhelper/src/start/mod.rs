//! What runs once, before requests are served; nothing in here runs after that.

pub mod config;
pub mod directory;
pub mod filter;
pub mod host;
pub mod jail;
pub mod landlock;
pub mod marker;
mod mounts;
pub mod outside;
mod patience;
mod pool;
pub mod privileges;
pub mod proof;
pub mod recover;
pub mod refusal;
pub mod split;
pub mod welcome;
