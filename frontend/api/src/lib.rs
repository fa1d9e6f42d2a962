//! How the frontend and the plugin for kubectl read what the API server answers: reduced to what is needed, and a page
//! at a time. Nothing here uses what only Linux has.

pub mod pages;
pub mod path;
pub mod projection;
