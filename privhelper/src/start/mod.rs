//! What runs once, before the privileges are dropped; nothing in here runs after that.

pub mod check;
pub mod config;
pub mod host;
pub mod jail;
pub mod marker;
pub mod mountinfo;
pub mod outside;
pub mod privileges;
pub mod recover;
pub mod split;
pub mod welcome;
