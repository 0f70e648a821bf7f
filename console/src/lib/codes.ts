// What a file of codes begins and ends with, as far as a browser can tell before the server reads it.

export interface FirstAndLast {
  first: string;
  last: string;
  lines: number; // with something in them, without the header
}

const header = /^((coupon|voucher|promo|discount|gift)[ _-]?)?codes?$/i;

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
  const reader = file.stream().pipeThrough(new TextDecoderStream()).getReader();
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
