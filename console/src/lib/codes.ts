// What a file of codes begins and ends with, as far as a browser can tell before the server reads it.

export interface FirstAndLast {
  first: string;
  last: string;
  lines: number; // with something in them, without the header
}

const header = /^(((coupon|voucher|promo|discount|gift)[ _-]?)?codes?|(쿠폰|할인|바우처|상품권)? ?(코드|번호))$/i; // as internal/coupon/code_import.go

/** encodingOf guesses as the server does: by the mark of UTF-16, then UTF-8, and else what Excel writes in Korea. */
async function encodingOf(file: Blob): Promise<string> {
  const begin = new Uint8Array(await file.slice(0, 65_536).arrayBuffer());
  if (begin[0] === 0xff && begin[1] === 0xfe) return 'utf-16le';
  if (begin[0] === 0xfe && begin[1] === 0xff) return 'utf-16be';
  try {
    new TextDecoder('utf-8', { fatal: true }).decode(begin, { stream: true });
    return 'utf-8';
  } catch {
    return 'euc-kr';
  }
}

/** firstAndLast reads a whole file, in pieces. */
export async function firstAndLast(file: Blob): Promise<FirstAndLast> {
  const found: FirstAndLast = { first: '', last: '', lines: 0 };
  let begun = false;
  const line = (text: string) => {
    const code = text.trim().replace(/^"(.*?)"?$/, '$1').trim();
    if (code === '') return;
    const isHeader = !begun && header.test(code);
    begun = true;
    if (isHeader) return;
    found.first ||= code;
    found.last = code;
    found.lines++;
  };
  const reader = file.stream().pipeThrough(new TextDecoderStream(await encodingOf(file))).getReader();
  let rest = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    const lines = (rest + value).split('\n');
    rest = lines.pop() ?? '';
    lines.forEach(line);
  }
  line(rest);
  return found;
}
