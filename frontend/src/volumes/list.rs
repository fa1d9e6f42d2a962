//! Lists volumes and snapshots page by page.

use bulkhead_model::volumes::{Fault, FaultKind};
use bulkhead_protocol::{Listed, MAX_LISTED, MAX_SNAPSHOTS, Snapshot, VolumeId};

use super::Volumes;

/// Volumes or snapshots in the order of their ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T> {
    /// What is listed.
    pub entries: Vec<T>,
    /// The token for the next page, if there is one.
    pub next: Option<String>,
}

impl Volumes {
    /// Lists at most `entries` volumes after `token`, which the previous page returned; it is empty for the first page.
    ///
    /// # Errors
    /// `BadToken` when no page can have returned it.
    pub async fn list(&self, entries: usize, token: &str) -> Result<Page<Listed>, Fault> {
        let mut gathered = Gathered::new(entries, token, |listed: &Listed| &listed.volume)?;
        while let Some((after, limit)) = gathered.wants(MAX_LISTED) {
            gathered.add(self.helper.list(after, limit).await?);
        }
        Ok(gathered.page())
    }

    /// Lists snapshots in the same way: all of them, or those taken of the volume `of`.
    ///
    /// # Errors
    /// As [`Self::list`].
    pub async fn list_snapshots(
        &self,
        of: Option<&VolumeId>,
        entries: usize,
        token: &str,
    ) -> Result<Page<Snapshot>, Fault> {
        let mut gathered = Gathered::new(entries, token, |listed: &Snapshot| &listed.snapshot)?;
        while let Some((after, limit)) = gathered.wants(MAX_SNAPSHOTS) {
            gathered.add(self.helper.list_snapshots(after, of.cloned(), limit).await?);
        }
        Ok(gathered.page())
    }
}

/// A page that is being put together from replies of the helper.
struct Gathered<T> {
    entries: Vec<T>,
    most: usize,
    after: Option<VolumeId>,
    is_complete: bool,
    id: fn(&T) -> &VolumeId,
}

impl<T> Gathered<T> {
    fn new(most: usize, token: &str, id: fn(&T) -> &VolumeId) -> Result<Self, Fault> {
        let after = if token.is_empty() { None } else { Some(from_token(token)?) };
        Ok(Self { entries: Vec::new(), most, after, is_complete: false, id })
    }

    /// Returns where to continue and how many to ask for, of the most that a reply has; `None` once the page is
    /// complete. One more than requested shows whether there is a next page.
    fn wants(&mut self, in_a_reply: usize) -> Option<(Option<VolumeId>, u16)> {
        if self.is_complete || self.entries.len() > self.most {
            return None;
        }
        let limit = (self.most + 1 - self.entries.len()).min(in_a_reply);
        Some((self.after.take(), u16::try_from(limit).unwrap_or(u16::MAX)))
    }

    fn add(&mut self, more: Vec<T>) {
        match more.last() {
            Some(last) => self.after = Some((self.id)(last).clone()),
            None => self.is_complete = true,
        }
        self.entries.extend(more);
    }

    fn page(mut self) -> Page<T> {
        self.entries.truncate(self.most);
        let last = self.entries.last().filter(|_| !self.is_complete);
        let next = last.map(|last| token_after((self.id)(last)));
        Page { entries: self.entries, next }
    }
}

/// A token is the id of the last volume in capitals: as long as the id, and never mistaken for one.
pub(super) fn token_after(volume: &VolumeId) -> String {
    volume.as_str().to_ascii_uppercase()
}

/// The volume that a token comes after.
pub(super) fn from_token(token: &str) -> Result<VolumeId, Fault> {
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
