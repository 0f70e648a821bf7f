// Files that the browser makes.

/** saveFile hands a file to the browser, which keeps it where downloads are. */
export function saveFile(name: string, content: Blob): void {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}

const quoted = (cell: string) => (/[",\r\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell);

/** csv writes rows as a file of comma-separated values. */
export const csv = (rows: string[][]): string => rows.map((cells) => cells.map(quoted).join(',') + '\r\n').join('');

/** guarded keeps a spreadsheet from running a cell as a formula; uploads read it back. */
export const guarded = (cell: string): string => (/^[=+\-@\t]/.test(cell) ? `'${cell}` : cell);
