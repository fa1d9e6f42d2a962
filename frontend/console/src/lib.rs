//! How the commands for people speak: what they print, what they ask, and their manual pages.

pub mod checks;
pub mod manual;
#[cfg_attr(windows, path = "pages/windows.rs")]
mod pages;
pub mod prompt;
pub mod report;
