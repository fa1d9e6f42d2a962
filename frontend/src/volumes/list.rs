//! Lists volumes page by page.

use bulkhead_model::volumes::{Fault, FaultKind};
use bulkhead_protocol::{Listed, MAX_LISTED, VolumeId};

use super::Volumes;

/// Volumes in the order of their ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The volumes.
    pub volumes: Vec<Listed>,
    /// The token for the next page, if there is one.
    pub next: Option<String>,
}

impl Volumes {
    /// Lists at most `entries` volumes after `token`, which the previous page returned; it is empty for the first page.
    ///
    /// # Errors
    /// `BadToken` when no page can have returned it.
    pub async fn list(&self, entries: usize, token: &str) -> Result<Page, Fault> {
        let mut after = if token.is_empty() { None } else { Some(from_token(token)?) };
        let mut volumes = Vec::new();
        // One more than requested shows whether there is a next page.
        while volumes.len() <= entries {
            let limit = (entries + 1 - volumes.len()).min(MAX_LISTED);
            let listed = self.helper.list(after.take(), u16::try_from(limit).unwrap_or(u16::MAX)).await?;
            let Some(last) = listed.last() else { return Ok(Page { volumes, next: None }) };
            after = Some(last.volume.clone());
            volumes.extend(listed);
        }
        volumes.truncate(entries);
        let next = volumes.last().map(|last| token_after(&last.volume));
        Ok(Page { volumes, next })
    }
}

/// A token is the id of the last volume in capitals: as long as the id, and never mistaken for one.
fn token_after(volume: &VolumeId) -> String {
    volume.as_str().to_ascii_uppercase()
}

fn from_token(token: &str) -> Result<VolumeId, Fault> {
    let in_capitals = !token.bytes().any(|byte| byte.is_ascii_lowercase());
    let volume = if in_capitals { token.to_ascii_lowercase().parse().ok() } else { None };
    volume.ok_or_else(|| {
        Fault::new(FaultKind::BadToken, "starting_token was not returned by an earlier call: start again without one")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_lead_back() {
        let volume: VolumeId = "pvc-0d6f.2".parse().unwrap();
        assert_eq!(from_token(&token_after(&volume)).unwrap(), volume);
    }

    #[test]
    fn other_texts_are_no_tokens() {
        for token in ["invalid-token", "pvc-1", "PVC_1", "1", "ÄB", "\0"] {
            assert_eq!(from_token(token).unwrap_err().kind, FaultKind::BadToken, "{token}");
        }
    }
}
