//! Clients in other languages, by the bytes that they send.

#[allow(dead_code, reason = "each suite uses a part of it")]
mod fake;
#[allow(dead_code, reason = "each suite uses a part of it")]
mod program;

use std::path::Path;
use std::time::Duration;

use loona_hpack::{Decoder, Encoder};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;

use fake::{FakeHelper, no_volumes};
use program::{Frontend, channel};

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let [.., high, middle, low] = payload.len().to_be_bytes();
    [&[high, middle, low, kind, flags, 0, 0, 0, stream], payload].concat()
}

/// The next frame but for settings, pings and the like: its type, its stream and its payload.
async fn next(connection: &mut UnixStream) -> (u8, u8, Vec<u8>) {
    loop {
        let mut head = [0; 9];
        timeout(Duration::from_secs(10), connection.read_exact(&mut head)).await.expect("an answer").unwrap();
        let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
        connection.read_exact(&mut payload).await.unwrap();
        if [0, 1, 3, 7].contains(&head[3]) {
            return (head[3], head[8], payload);
        }
    }
}

/// What GetPluginInfo is answered twice over a connection of a client that names this host: the last fields of each answer.
async fn answers(socket: &Path, authority: &[u8]) -> Vec<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut connection = UnixStream::connect(socket).await.unwrap();
    let (mut encoder, mut decoder, mut answers) = (Encoder::new(), Decoder::new(), Vec::new());
    connection.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    connection.write_all(&frame(4, 0, 0, &[])).await.unwrap();
    for stream in [1, 3] {
        let fields: [(&[u8], &[u8]); 6] = [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", b"/csi.v1.Identity/GetPluginInfo"),
            (b":authority", authority),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
        ];
        connection.write_all(&frame(1, 4, stream, &encoder.encode(fields))).await.unwrap();
        connection.write_all(&frame(0, 1, stream, &[0; 5])).await.unwrap();
        let mut has_body = false;
        loop {
            let (kind, of, payload) = next(&mut connection).await;
            assert_eq!(of, stream, "frame of type {kind}: {payload:?}");
            match kind {
                0 => has_body = true,
                1 => {
                    let fields = decoder.decode(&payload).unwrap();
                    if has_body {
                        answers.push(fields);
                        break;
                    }
                }
                _ => panic!("{authority:?}: the call is reset: {payload:?}"),
            }
        }
    }
    answers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_a_client_says_of_the_host_it_is_answered() {
    let helper = FakeHelper::start(|_| no_volumes());
    let socket = helper.directory().join("csi.sock");
    let _frontend = Frontend::start(&helper, &["--csi-endpoint", &format!("unix://{}", socket.display())]);
    channel(&socket).await;
    let path = socket.to_str().unwrap().to_owned();
    let encoded = path.replace('/', "%2F");
    for authority in ["localhost", &path, &encoded, "", "unix:/csi.sock", "[", "a b"] {
        let ok = (b"grpc-status".to_vec(), b"0".to_vec());
        for answer in answers(&socket, authority.as_bytes()).await {
            assert!(answer.contains(&ok), "{authority:?}: {answer:?}");
        }
    }
}
