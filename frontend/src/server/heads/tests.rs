use loona_hpack::Encoder;

use super::*;

/// The socket as a host: as it is, and with percent signs.
const PATHS: [&[u8]; 3] = [b"/csi/csi.sock", b"%2Fcsi%2Fcsi.sock", b""];

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let [.., high, middle, low] = payload.len().to_be_bytes();
    [&[high, middle, low, kind, flags, 0, 0, 0, stream], payload].concat()
}

/// A connection of three calls by a client that refers to earlier heads, each with a body.
fn connection(authority: &[u8]) -> Vec<u8> {
    let mut encoder = Encoder::new();
    let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    sent.extend(frame(4, 0, 0, &[]));
    for stream in [1, 3, 5] {
        let fields: [(&[u8], &[u8]); 4] =
            [(b":method", b"POST"), (b":path", b"/a"), (AUTHORITY, authority), (b"te", b"trailers")];
        sent.extend(frame(HEADERS, END_HEADERS, stream, &encoder.encode(fields)));
        sent.extend(frame(0, END_STREAM, stream, &[stream; 3000]));
    }
    sent
}

/// What is passed on of what comes in parts of this size.
fn passed(sent: &[u8], size: usize) -> io::Result<Vec<u8>> {
    let (mut heads, mut passed) = (Heads::new(), Vec::new());
    for part in sent.chunks(size) {
        heads.take(part)?;
        let mut bytes = vec![0; sent.len() * 4];
        let mut buffer = ReadBuf::new(&mut bytes);
        while heads.give(&mut buffer) {}
        passed.extend_from_slice(buffer.filled());
    }
    Ok(passed)
}

/// The frames after the preface: type, flags, stream and payload.
fn frames(mut bytes: &[u8]) -> Vec<(u8, u8, u8, Vec<u8>)> {
    let (mut found, _) = (Vec::new(), bytes.split_off(..PREFACE));
    while let Some(head) = bytes.split_off(..FRAME_HEAD) {
        let length = usize::from(head[1]) << 8 | usize::from(head[2]);
        found.push((head[3], head[4], head[8], bytes.split_off(..length).unwrap().to_vec()));
    }
    found
}

fn decoded(block: &[u8]) -> Vec<String> {
    let fields = Decoder::new().decode(block).unwrap();
    fields.iter().map(|(name, value)| format!("{}={}", name.escape_ascii(), value.escape_ascii())).collect()
}

#[test]
fn a_usual_connection_is_passed_on_byte_by_byte() {
    for authority in [&b"localhost"[..], b"csi.sock", b"127.0.0.1:80"] {
        let sent = connection(authority);
        for size in [1, 7, 100, sent.len()] {
            assert_eq!(passed(&sent, size).unwrap(), sent, "in parts of {size}");
        }
    }
}

#[test]
fn what_is_no_host_is_left_out_and_nothing_else() {
    for authority in PATHS {
        let sent = connection(authority);
        for size in [1, 7, 100, sent.len()] {
            let found = frames(&passed(&sent, size).unwrap());
            assert_eq!(found[0], (4, 0, 0, Vec::new()));
            for (stream, pair) in [1, 3, 5].into_iter().zip(found[1..].chunks(2)) {
                let [(HEADERS, END_HEADERS, of, block), body] = pair else { panic!("{pair:?}") };
                assert_eq!(
                    (*of, decoded(block)),
                    (stream, vec![":method=POST".into(), ":path=/a".into(), "te=trailers".into()])
                );
                assert_eq!(*body, (0, END_STREAM, stream, vec![stream; 3000]));
            }
        }
    }
}

#[test]
fn a_head_may_come_in_any_form() {
    // A method from the static table, and a slash for a host in Huffman's code, never indexed.
    let block = [0x83, 0x11, 0x81, 0x63];
    let padded = [&[3, 0, 0, 0, 0, 9][..], &block, &[0; 3]].concat();
    let preface = [0; PREFACE].to_vec();
    let forms = [
        vec![frame(HEADERS, END_STREAM | END_HEADERS, 1, &block)],
        vec![frame(HEADERS, END_STREAM | END_HEADERS | PADDED | PRIORITY, 1, &padded)],
        vec![
            frame(HEADERS, END_STREAM, 1, &block[..1]),
            frame(CONTINUATION, 0, 1, &block[1..3]),
            frame(CONTINUATION, END_HEADERS, 1, &block[3..]),
        ],
    ];
    for form in forms {
        let sent = [&[preface.clone()][..], &form].concat().concat();
        let found = frames(&passed(&sent, 5).unwrap());
        let [(HEADERS, flags, 1, block)] = &found[..] else { panic!("{found:?}") };
        assert_eq!((*flags, decoded(block)), (END_STREAM | END_HEADERS, vec![":method=POST".to_owned()]));
    }
}

#[test]
fn a_long_head_is_sent_in_several_frames() {
    let long = vec![b'x'; 20_000];
    let mut block = vec![0x83, 0x11, 0x81, 0x63];
    block.extend_from_slice(b"\0\x04long");
    encode_length(long.len(), &mut block);
    block.extend_from_slice(&long);
    let (first, second) = block.split_at(LONGEST_FRAME);
    let sent = [vec![0; PREFACE], frame(HEADERS, 0, 1, first), frame(CONTINUATION, END_HEADERS, 1, second)].concat();
    let found = frames(&passed(&sent, 999).unwrap());
    let [(HEADERS, 0, 1, first), (CONTINUATION, END_HEADERS, 1, second)] = &found[..] else {
        panic!("{}", found.len())
    };
    let fields = Decoder::new().decode(&[first.clone(), second.clone()].concat()).unwrap();
    assert_eq!(fields, [(b":method".to_vec(), b"POST".to_vec()), (b"long".to_vec(), long)]);
}

#[test]
fn what_is_malformed_ends_the_connection_or_is_left_to_the_server() {
    let preface = || vec![0; PREFACE];
    let no_index = frame(HEADERS, END_HEADERS, 1, &[0xff, 0x00]);
    let sent = [preface(), no_index.clone()].concat();
    assert_eq!(passed(&sent, 3).unwrap(), sent, "the server says what is wrong with a first head");
    let begun = frame(HEADERS, END_HEADERS, 1, &[0x83, 0x11, 0x81, 0x63]);
    for wrong in [
        // Once others' heads are written anew, nobody else can read them.
        vec![begun.clone(), no_index],
        vec![frame(HEADERS, 0, 1, &[0x83]), frame(0, 0, 1, &[0])],
        vec![frame(HEADERS, 0, 1, &[0x83]), frame(CONTINUATION, END_HEADERS, 3, &[0x83])],
        vec![frame(HEADERS, 0, 1, &[0x83]), frame(HEADERS, END_HEADERS, 1, &[0x83])],
        vec![frame(HEADERS, END_HEADERS | PADDED, 1, &[4, 0x83, 0, 0])],
        vec![frame(HEADERS, END_HEADERS | PRIORITY, 1, &[0; 4])],
        vec![frame(HEADERS, END_HEADERS | PADDED, 1, &[])],
        vec![frame(HEADERS, END_HEADERS, 1, &[0; LONGEST_FRAME + 1])],
        std::iter::once(frame(HEADERS, 0, 1, &[]))
            .chain((0..3).map(|_| frame(CONTINUATION, 0, 1, &[0x83; 12_000])))
            .collect(),
    ] {
        assert!(passed(&[vec![preface()], wrong.clone()].concat().concat(), 64).is_err(), "{:?}", wrong[0]);
    }
    // One byte for each four thousand.
    let mut bomb = vec![0x83, 0x11, 0x81, 0x63, 0x40, 0x01, b'x'];
    encode_length(4000, &mut bomb);
    bomb.extend([b'y'; 4000]);
    let again = frame(HEADERS, END_HEADERS, 3, &[0xbe; 10_000]);
    let sent = [preface(), frame(HEADERS, END_HEADERS, 1, &bomb), again].concat();
    assert!(passed(&sent, sent.len()).is_err_and(|error| error.to_string().contains("too long")));
}

#[test]
fn no_bytes_at_all_stop_the_program() {
    let mut seed = 1_u64;
    let mut random = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 56) as u8
    };
    for _ in 0..3000 {
        let block: Vec<u8> = [0x11, 0x81, 0x63].into_iter().chain((0..20).map(|_| random())).collect();
        let second = frame(random() & 9, random(), 1, &(0..30).map(|_| random()).collect::<Vec<_>>());
        let sent = [vec![0; PREFACE], frame(HEADERS, random(), 1, &block), second, vec![random(); 40]].concat();
        let _ = passed(&sent, 11);
    }
}
