// Short reports at the edge of the page: what an action has done.

export interface Toast {
  id: number;
  text: string;
}

export const toasts = $state<Toast[]>([]);
let last = 0;

export function tell(text: string): void {
  const id = ++last;
  toasts.push({ id, text });
  setTimeout(() => dismiss(id), 8000);
}

export function dismiss(id: number): void {
  const i = toasts.findIndex((t) => t.id === id);
  if (i >= 0) toasts.splice(i, 1);
}
