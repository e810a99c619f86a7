//! As much of DER (X.690) as SPNEGO needs. Nothing here calls itself, so nesting costs no stack.

/// Bytes that are not what was expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BadDer;

/// Elements one behind the other.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn next_is(&self, tag: u8) -> bool {
        self.0.first() == Some(&tag)
    }

    /// The content of the next element, which must have this tag.
    pub(super) fn element(&mut self, tag: u8) -> Result<&'a [u8], BadDer> {
        self.raw(tag).map(|(_, content)| content)
    }

    /// The next element, which must have this tag: all of it, and its content.
    pub(super) fn raw(&mut self, tag: u8) -> Result<(&'a [u8], &'a [u8]), BadDer> {
        let whole = self.0;
        let ([first, short], mut rest) = whole.split_first_chunk().ok_or(BadDer)?;
        if *first != tag {
            return Err(BadDer);
        }
        let mut len = usize::from(*short);
        if len >= 0x80 {
            // Indefinite length is no DER; more than three bytes of length are no token.
            let count = len & 0x7f;
            if !(1..=3).contains(&count) || rest.len() < count {
                return Err(BadDer);
            }
            let (bytes, more) = rest.split_at(count);
            len = bytes.iter().fold(0, |len, byte| len << 8 | usize::from(*byte));
            rest = more;
        }
        if len > rest.len() {
            return Err(BadDer);
        }
        let (content, next) = rest.split_at(len);
        self.0 = next;
        Ok((&whole[..whole.len() - next.len()], content))
    }

    /// The content of the next element if it has this tag.
    pub(super) fn optional(&mut self, tag: u8) -> Result<Option<&'a [u8]>, BadDer> {
        if self.next_is(tag) { self.element(tag).map(Some) } else { Ok(None) }
    }
}

/// An element of these contents.
pub(super) fn element(tag: u8, contents: &[&[u8]]) -> Vec<u8> {
    let len = contents.iter().map(|part| part.len()).sum::<usize>();
    let mut out = Vec::with_capacity(len + 5);
    out.push(tag);
    let bytes = len.to_be_bytes();
    let significant = &bytes[bytes.iter().take_while(|byte| **byte == 0).count()..];
    if len >= 0x80 {
        // At most eight bytes.
        out.push(0x80 | u8::try_from(significant.len()).unwrap_or(8));
        out.extend_from_slice(significant);
    } else {
        out.push(bytes[bytes.len() - 1]);
    }
    contents.iter().for_each(|part| out.extend_from_slice(part));
    out
}
