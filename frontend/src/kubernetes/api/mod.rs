//! Talking to the API server, whatever the subject. Nothing here knows about claims, volumes or capacity.
//!
//! From top to bottom, each importing only from those below it: [`server`], what is [`between`] it and the client
//! ([`Projection`], [`rewound`], [`silence`], [`retry_after`], [`instrument`], [`pace`]), [`credential`] ([`own_token`],
//! [`token`], [`transport`]), [`events`], [`node_identity`], [`csi_node`], [`watch`], [`first_lists`], [`pages`], [`backoff`],
//! [`request`], [`failure`].
//!
//! [`Projection`]: bulkhead_api::projection::Projection

pub mod backoff;
mod between;
pub mod credential;
pub mod csi_node;
pub mod events;
pub mod failure;
pub mod first_lists;
pub mod instrument;
pub mod node_identity;
pub mod own_token;
pub mod pace;
pub mod pages;
pub mod request;
mod retry_after;
mod rewound;
mod sandbox_needs;
pub mod server;
mod silence;
pub mod token;
mod transport;
pub mod watch;
