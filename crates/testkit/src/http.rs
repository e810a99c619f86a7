//! As much of HTTP/1.1 as a server of one page and its load generator need.

/// Bytes of body in each answer, as in the nginx benches.
pub const BODY_BYTES: usize = 1024;

/// Where the head of the first message in `bytes` ends, if it is all there.
#[must_use]
pub fn head_len(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4)
}

/// The value of a header, its name in lower case.
#[must_use]
pub fn header<'a>(head: &'a [u8], name: &str) -> Option<&'a str> {
    let head = std::str::from_utf8(head).ok()?;
    let lines = head.split("\r\n").filter_map(|line| line.split_once(':'));
    lines.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim()).next()
}

/// Whether the sender of this head wants the connection closed after the message.
#[must_use]
pub fn wants_close(head: &[u8]) -> bool {
    header(head, "connection").is_some_and(|value| value.eq_ignore_ascii_case("close"))
}

/// Length of the whole answer that begins `bytes`: `None` while its head is not complete.
///
/// # Errors
///
/// A sentence when it is no answer that can be measured: not status 200, or of unknown length.
pub fn answer_len(bytes: &[u8]) -> Result<Option<usize>, String> {
    let Some(head) = head_len(bytes) else { return Ok(None) };
    if !bytes.starts_with(b"HTTP/1.1 200 ") {
        let line = bytes.split(|byte| *byte == b'\r').next().unwrap_or_default();
        return Err(format!("the server answered {:?}", String::from_utf8_lossy(line)));
    }
    let body =
        header(&bytes[..head], "content-length").and_then(|value| value.parse::<usize>().ok());
    body.map(|body| Some(head + body)).ok_or_else(|| "the answer has no Content-Length".into())
}

/// A request for `path`.
#[must_use]
pub fn request(path: &str, close: bool) -> Vec<u8> {
    let connection = if close { "Connection: close\r\n" } else { "" };
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{connection}\r\n").into_bytes()
}

/// The answer to each request.
#[must_use]
pub fn answer(close: bool) -> Vec<u8> {
    let connection = if close { "close" } else { "keep-alive" };
    let mut bytes = format!(
        "HTTP/1.1 200 OK\r\nServer: shunt-testkit\r\nContent-Type: text/plain\r\n\
         Content-Length: {BODY_BYTES}\r\nConnection: {connection}\r\n\r\n"
    )
    .into_bytes();
    bytes.extend((0..BODY_BYTES).map(|i| if i % 64 == 63 { b'\n' } else { b'.' }));
    bytes
}

#[cfg(test)]
mod tests {
    use super::{answer, answer_len, head_len, header, request, wants_close};

    #[test]
    fn what_the_server_says_the_client_understands() {
        for close in [false, true] {
            let request = request("/", close);
            assert_eq!(head_len(&request), Some(request.len()));
            assert_eq!(wants_close(&request), close);
            let answer = answer(close);
            assert_eq!(answer_len(&answer), Ok(Some(answer.len())));
            assert_eq!(wants_close(&answer), close);
        }
    }

    #[test]
    fn incomplete_and_foreign_answers() {
        assert_eq!(answer_len(b"HTTP/1.1 200 OK\r\nContent-Le"), Ok(None));
        assert!(answer_len(b"HTTP/1.1 404 Not Found\r\n\r\n").is_err());
        assert!(answer_len(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
        assert_eq!(header(b"A: 1\r\nb:2\r\n\r\n", "B"), Some("2"));
    }
}
