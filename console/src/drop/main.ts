import { mount } from 'svelte';
import Drop from './Drop.svelte';
import '../app.css';

mount(Drop, { target: document.getElementById('app')! });
