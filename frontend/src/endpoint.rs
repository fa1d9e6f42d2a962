//! CSI endpoints: Unix sockets to listen on and to connect to.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::fs::Mode;
use rustix::process::umask;

/// The path of a Unix socket, written `unix:///absolute/path` (CSI, `CSI_ENDPOINT`) or as the path alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint(PathBuf);

/// Why an endpoint cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// The text is not an endpoint.
    #[error("invalid endpoint {0:?}: give the absolute path of a Unix socket, such as unix:///run/bulkhead/csi.sock")]
    NotUnix(String),
    /// Another kind of file is there.
    #[error("cannot listen on {}: the path is not a socket; remove it or choose another path", .0.display())]
    NotSocket(PathBuf),
    /// Another process serves it.
    #[error("cannot listen on {}: another process is listening there; stop it or choose another path", .0.display())]
    InUse(PathBuf),
    /// A system call failed.
    #[error("cannot listen on {}: {error}; check that its directory exists and that this process may write to it", path.display())]
    System {
        /// The socket's path.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
}

impl Endpoint {
    /// The socket's path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Listens on the socket, replacing one that no process listens on any more. Only this process's user may connect.
    ///
    /// Call this while the process has a single thread, since it briefly changes the umask.
    ///
    /// # Errors
    /// See [`EndpointError`].
    pub fn bind(&self) -> Result<UnixListener, EndpointError> {
        let failed = |error| EndpointError::System { path: self.0.clone(), error };
        match fs::symlink_metadata(&self.0) {
            Ok(found) if !found.file_type().is_socket() => return Err(EndpointError::NotSocket(self.0.clone())),
            Ok(_) if UnixStream::connect(&self.0).is_ok() => return Err(EndpointError::InUse(self.0.clone())),
            Ok(_) => fs::remove_file(&self.0).map_err(failed)?,
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        let before = umask(Mode::from_raw_mode(0o077));
        let bound = UnixListener::bind(&self.0);
        umask(before);
        let listener = bound.map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(listener)
    }

    /// Removes the socket that this process bound. If that fails, the next process replaces it.
    pub fn remove(&self) {
        if let Err(error) = fs::remove_file(&self.0) {
            tracing::warn!("cannot remove the socket {}: {error}; the next start replaces it", self.0.display());
        }
    }
}

impl From<PathBuf> for Endpoint {
    fn from(path: PathBuf) -> Self {
        Self(path)
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let path = text.strip_prefix("unix://").or_else(|| text.strip_prefix("unix:")).unwrap_or(text);
        if path.starts_with('/') { Ok(Self(path.into())) } else { Err(EndpointError::NotUnix(text.to_owned())) }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn endpoint(text: &str) -> Result<Endpoint, EndpointError> {
        text.parse()
    }

    #[test]
    fn spellings() {
        for text in ["unix:///run/csi.sock", "unix:/run/csi.sock", "/run/csi.sock"] {
            assert_eq!(endpoint(text).unwrap().path(), Path::new("/run/csi.sock"));
        }
        for text in ["", "csi.sock", "unix://csi.sock", "tcp://127.0.0.1:9000", "http://x/"] {
            assert!(matches!(endpoint(text), Err(EndpointError::NotUnix(_))), "{text}");
        }
    }

    #[test]
    fn a_stale_socket_is_replaced_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("csi.sock");
        let endpoint = endpoint(path.to_str().unwrap()).unwrap();
        let listener = endpoint.bind().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o077, 0);
        assert!(matches!(endpoint.bind(), Err(EndpointError::InUse(_))));
        drop(listener);
        drop(endpoint.bind().unwrap());
        fs::remove_file(&path).unwrap();
        fs::write(&path, "precious").unwrap();
        assert!(matches!(endpoint.bind(), Err(EndpointError::NotSocket(_))));
        assert_eq!(fs::read(&path).unwrap(), b"precious");
    }
}
