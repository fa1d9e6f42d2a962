//! Lists of the frontend, read to their end, if they have one.

use std::time::Duration;

use bulkhead_model::reading::{Ceiling, Reading};
use prost::Message;
use tokio::time::timeout;
use tonic::{Response, Status, Streaming};

use crate::failure::Failure;

/// The most that is read of a list that is asked for by the page: a million volumes with little to be said of each.
const CEILING: Ceiling = Ceiling { pages: 2000, bytes: 64 << 20, time: Duration::from_secs(600) };

/// The most that is read of a snapshot's ranges: twice as many as any snapshot has.
const RANGES: Ceiling = Ceiling { pages: 100_000, bytes: 8 << 20, time: Duration::from_secs(600) };

/// Passes each page to `take`, which returns the token for the next one; it is empty if there is none. `ask` gets the
/// page of a token.
pub async fn each<P: Message>(
    mut ask: impl AsyncFnMut(String) -> Result<Response<P>, Status>,
    mut take: impl FnMut(P) -> Result<String, Failure>,
) -> Result<(), Failure> {
    let (mut token, mut reading) = (String::new(), Reading::begin(CEILING));
    loop {
        let page = timeout(reading.time_left(), ask(token)).await.map_err(|_| reading.late())??.into_inner();
        let bytes = page.encoded_len();
        token = take(page)?;
        reading.page(bytes, &token)?;
        if token.is_empty() {
            return Ok(());
        }
    }
}

/// Passes each message of a stream to `take`.
pub async fn ranges<M: Message>(mut stream: Streaming<M>, mut take: impl FnMut(M)) -> Result<(), Failure> {
    let mut reading = Reading::begin(RANGES);
    while let Some(message) = timeout(reading.time_left(), stream.message()).await.map_err(|_| reading.late())?? {
        reading.page(message.encoded_len(), "")?;
        take(message);
    }
    Ok(())
}
