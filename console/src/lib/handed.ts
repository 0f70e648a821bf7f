// A file that was dropped on one page and is checked on the next.

let handed: { promotion: string; file: File } | undefined;

export function hand(promotion: string, file: File): void {
  handed = { promotion, file };
}

/** take returns the file for a promotion, once. */
export function take(promotion: string): File | undefined {
  const found = handed?.promotion === promotion ? handed.file : undefined;
  handed = undefined;
  return found;
}
