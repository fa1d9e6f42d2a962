//! How the commands for people speak: what they print, what they ask, and their manual pages.

pub mod checks;
pub mod manual;
mod pages;
pub mod prompt;
pub mod report;
