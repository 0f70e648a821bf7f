/** base is where the API is: the folder of the page, since the console may be mounted below a prefix. */
export const base = new URL('.', location.href.split('#')[0]).pathname.replace(/drop\/$/, '');
