//! The heads of calls, as clients in any language send them.
//!
//! There is no host on a Unix socket. Clients in C++, Python, Ruby, PHP, C#, Java and Swift send the path of the socket as
//! `:authority` (RFC 9113, section 8.3.1), some with percent signs in it, and others send an empty one. The HTTP library
//! takes that for a malformed call, which no handler sees. Nothing depends on the field, so it is left out of all heads of
//! such a connection. Any other connection is passed on byte by byte.

use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::sync::Once;
use std::task::{Context, Poll, ready};

use http::uri::Authority;
use loona_hpack::Decoder;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;
use tracing::{debug, warn};

use super::clients::Client;

/// What a client sends first (RFC 9113, section 3.4), in bytes.
const PREFACE: usize = 24;
/// What precedes the payload of a frame (section 4.1), in bytes.
const FRAME_HEAD: usize = 9;
/// The longest payload of a frame that the server allows, in bytes: it does not say another than the default.
const LONGEST_FRAME: usize = 16 << 10;
/// The longest head, as it is sent, in bytes. The server refuses shorter ones.
const LONGEST_BLOCK: usize = 32 << 10;
/// The longest head, once it is decoded, in bytes: a byte may stand for thousands.
const LONGEST_HEAD: usize = 64 << 10;
/// The size of the table that a client may refer to, in bytes: as the server does not say another either.
const TABLE: usize = 4096;

/// Types of frames.
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;

/// Flags of a head.
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// How much is read at once, in bytes.
const AT_ONCE: usize = 8 << 10;

const AUTHORITY: &[u8] = b":authority";

/// A client whose heads can be understood.
pub struct Understood {
    client: Client,
    heads: Heads,
}

/// What a client has sent, from its first byte on.
struct Heads {
    connection: Connection,
    /// What is not looked at yet.
    received: Vec<u8>,
    /// What can be read.
    ready: Vec<u8>,
    /// How many of the bytes that come next are none of a head.
    passing: usize,
    head: Option<Head>,
}

/// What is known of the client of a connection.
enum Connection {
    /// Nothing yet.
    New(Box<Decoder<'static>>),
    /// Its heads can be passed on.
    Usual,
    /// Its heads are sent anew, without what they say of the host.
    WithoutHost(Box<Decoder<'static>>),
}

/// A head that has not come as a whole.
struct Head {
    stream: [u8; 4],
    ends_stream: bool,
    block: Vec<u8>,
    /// The frames that it came in.
    frames: Vec<u8>,
}

/// The fields of a head, with their names.
type Fields = Vec<(Vec<u8>, Vec<u8>)>;

impl Understood {
    /// A client that has just connected.
    pub fn new(client: Client) -> Self {
        Self { client, heads: Heads::new() }
    }
}

impl Heads {
    fn new() -> Self {
        let mut decoder = Decoder::new();
        decoder.set_max_allowed_table_size(TABLE);
        Self {
            connection: Connection::New(Box::new(decoder)),
            received: Vec::new(),
            ready: Vec::new(),
            passing: PREFACE,
            head: None,
        }
    }

    /// Takes in what the client has sent.
    ///
    /// # Errors
    /// When it cannot be understood, and others depend on it.
    fn take(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.received.extend_from_slice(bytes);
        while !matches!(self.connection, Connection::Usual) {
            let passed = self.passing.min(self.received.len());
            self.ready.extend(self.received.drain(..passed));
            self.passing -= passed;
            let Some(frame_head) = self.received.first_chunk::<FRAME_HEAD>() else { return Ok(()) };
            let [high, middle, low, kind, flags, stream @ ..] = *frame_head;
            let length = u32::from_be_bytes([0, high, middle, low]) as usize;
            let is_of_head = kind == HEADERS || kind == CONTINUATION && self.head.is_some();
            if !is_of_head && self.head.is_none() {
                self.passing = FRAME_HEAD + length;
                continue;
            }
            if !is_of_head || length > LONGEST_FRAME {
                return Err(malformed("a head is interrupted, or longer than a frame"));
            }
            if self.received.len() < FRAME_HEAD + length {
                return Ok(());
            }
            let frame: Vec<u8> = self.received.drain(..FRAME_HEAD + length).collect();
            self.take_part(kind, flags, stream, &frame)?;
        }
        self.ready.append(&mut self.received);
        Ok(())
    }

    /// Writes to `buffer` what can be read, if there is any.
    fn give(&mut self, buffer: &mut ReadBuf<'_>) -> bool {
        let (given, rest) = self.ready.split_at(self.ready.len().min(buffer.remaining()));
        buffer.put_slice(given);
        let is_given = !given.is_empty();
        // Most connections have nothing here any more after their first call.
        self.ready = rest.to_vec();
        is_given
    }

    /// Takes in a frame of a head.
    fn take_part(&mut self, kind: u8, flags: u8, stream: [u8; 4], frame: &[u8]) -> io::Result<()> {
        let payload = frame.get(FRAME_HEAD..).unwrap_or_default();
        let part = if kind == HEADERS { fragment(flags, payload) } else { Some(payload) };
        let part = part.ok_or_else(|| malformed("a head is shorter than its padding"))?;
        let mut head = match self.head.take() {
            Some(head) if kind == CONTINUATION && head.stream == stream => head,
            None if kind == HEADERS => {
                Head { stream, ends_stream: flags & END_STREAM != 0, block: Vec::new(), frames: Vec::new() }
            }
            _ => return Err(malformed("a head is interrupted")),
        };
        head.block.extend_from_slice(part);
        head.frames.extend_from_slice(frame);
        if head.frames.len() > LONGEST_BLOCK {
            return Err(malformed("a head is too long"));
        }
        match flags & END_HEADERS {
            0 => self.head = Some(head),
            _ => self.take_whole(&head)?,
        }
        Ok(())
    }

    fn take_whole(&mut self, head: &Head) -> io::Result<()> {
        let fields = match &mut self.connection {
            Connection::Usual => None,
            Connection::New(decoder) => match decode(decoder, &head.block) {
                Ok(fields) => Some(fields).filter(names_no_host),
                // The server refuses it for a reason of its own.
                Err(error) => {
                    tell(&error);
                    None
                }
            },
            Connection::WithoutHost(decoder) => Some(decode(decoder, &head.block)?),
        };
        let Some(fields) = fields else {
            self.connection = Connection::Usual;
            self.ready.extend_from_slice(&head.frames);
            return Ok(());
        };
        self.connection = match std::mem::replace(&mut self.connection, Connection::Usual) {
            Connection::New(decoder) | Connection::WithoutHost(decoder) => Connection::WithoutHost(decoder),
            Connection::Usual => Connection::Usual,
        };
        encode(head, &fields, &mut self.ready);
        Ok(())
    }
}

/// The part of a head in a HEADERS frame (section 6.2); `None` if it is shorter than it says.
fn fragment(flags: u8, payload: &[u8]) -> Option<&[u8]> {
    let (padding, rest) = if flags & PADDED == 0 {
        (0, payload)
    } else {
        payload.split_first().map(|(n, rest)| (usize::from(*n), rest))?
    };
    let rest = rest.get(if flags & PRIORITY == 0 { 0 } else { 5 }..)?;
    rest.get(..rest.len().checked_sub(padding)?)
}

/// Decodes a head.
fn decode(decoder: &mut Decoder<'_>, block: &[u8]) -> io::Result<Fields> {
    let (mut fields, mut length) = (Fields::new(), 0_usize);
    let decoded = decoder.decode_with_cb(block, |name, value| {
        length += name.len() + value.len();
        if length <= LONGEST_HEAD {
            fields.push((name.into_owned(), value.into_owned()));
        }
    });
    match decoded {
        Ok(()) if length <= LONGEST_HEAD => Ok(fields),
        Ok(()) => Err(malformed("a head is too long")),
        Err(error) => Err(malformed(&error.to_string())),
    }
}

/// Returns whether the server would refuse what these fields say of the host.
fn names_no_host(fields: &Fields) -> bool {
    let host = fields.iter().find(|(name, _)| name == AUTHORITY).map(|(_, value)| value.as_slice());
    let names_none = host.is_some_and(|host| Authority::try_from(host).is_err());
    if names_none {
        debug!(authority = %host.unwrap_or_default().escape_ascii(), "a client names no host: that is left out of its calls");
    }
    names_none
}

/// Writes a head that refers to no other (RFC 7541, section 6.2.2).
fn encode(head: &Head, fields: &Fields, out: &mut Vec<u8>) {
    let mut block = Vec::with_capacity(2 * head.block.len());
    for (name, value) in fields.iter().filter(|(name, _)| name != AUTHORITY) {
        block.push(0);
        for text in [name, value] {
            encode_length(text.len(), &mut block);
            block.extend_from_slice(text);
        }
    }
    let mut parts = block.chunks(LONGEST_FRAME).peekable();
    let (mut kind, mut flags) = (HEADERS, if head.ends_stream { END_STREAM } else { 0 });
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            flags |= END_HEADERS;
        }
        let [.., high, middle, low] = part.len().to_be_bytes();
        out.extend_from_slice(&[high, middle, low, kind, flags]);
        out.extend_from_slice(&head.stream);
        out.extend_from_slice(part);
        (kind, flags) = (CONTINUATION, 0);
    }
}

/// The length of a text (RFC 7541, section 5.1): what does not fit into seven bits follows in groups of seven.
fn encode_length(length: usize, out: &mut Vec<u8>) {
    const MOST: usize = 0x7f;
    let lowest = |number: usize| number.to_le_bytes()[0];
    let Some(mut rest) = length.checked_sub(MOST) else { return out.push(lowest(length)) };
    out.push(lowest(MOST));
    while rest > MOST {
        out.push(lowest(rest) | 0x80);
        rest >>= 7;
    }
    out.push(lowest(rest));
}

/// Says, once, that there is a client that cannot be understood: the server says nothing of it.
fn tell(why: &io::Error) {
    static TOLD: Once = Once::new();
    TOLD.call_once(|| warn!("the calls of a client fail: {why}"));
}

fn malformed(why: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("what a client sent is not HTTP/2: {why}"))
}

impl Connected for Understood {
    type ConnectInfo = Client;

    fn connect_info(&self) -> Client {
        self.client.connect_info()
    }
}

impl AsyncRead for Understood {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { client, heads } = &mut *self;
        loop {
            if heads.give(buffer) {
                return Poll::Ready(Ok(()));
            }
            if matches!(heads.connection, Connection::Usual) {
                return Pin::new(client).poll_read(context, buffer);
            }
            let mut bytes = [0; AT_ONCE];
            let mut read = ReadBuf::new(&mut bytes);
            ready!(Pin::new(&mut *client).poll_read(context, &mut read))?;
            if read.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            heads.take(read.filled()).inspect_err(tell)?;
        }
    }
}

impl AsyncWrite for Understood {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.client).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.client).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.client.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.client).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.client).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests;
