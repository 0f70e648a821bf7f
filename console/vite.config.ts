import { svelte } from '@sveltejs/vite-plugin-svelte';
import tailwindcss from '@tailwindcss/vite';
import { defineConfig } from 'vite';

// File names without hashes keep the committed build small in a diff; the server
// sends an ETag with each file.
export default defineConfig({
  base: './',
  plugins: [svelte(), tailwindcss()],
  server: { proxy: { '/v1': 'http://127.0.0.1:8080', '/readyz': 'http://127.0.0.1:8080' } },
  build: {
    outDir: 'dist',
    target: 'es2022',
    modulePreload: false,
    reportCompressedSize: false,
    rolldownOptions: {
      input: { index: 'index.html', drop: 'drop/index.html' },
      output: {
        entryFileNames: 'assets/[name].js',
        chunkFileNames: 'assets/[name].js',
        assetFileNames: 'assets/[name][extname]',
      },
    },
  },
});
